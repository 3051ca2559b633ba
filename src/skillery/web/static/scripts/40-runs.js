// The live log of a run: server-sent events, one stream for a page, closed while the page is hidden. If the server has
// no stream to give, the page asks for the log every second.
(() => {
  "use strict";
  const MOST_PARTS = 5000;
  const start = (place) => {
    const log = place.querySelector("[data-log]");
    const status = document.querySelector("[data-status]");
    let after = place.dataset.after;
    const progress = document.querySelector("[data-progress]");
    let source = null;
    let timer = 0;
    const add = (parts) => {
      const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
      for (const [css, text] of parts) {
        const part = document.createElement("span");
        part.className = css;
        part.textContent = text;
        log.append(part);
      }
      while (log.childNodes.length > MOST_PARTS) log.firstChild.remove();
      if (follows) log.scrollTop = log.scrollHeight;
    };
    const open = () => {
      if (source) return;
      source = new EventSource(`${place.dataset.events}?after=${after}`);
      source.addEventListener("log", (event) => { after = event.lastEventId; add(JSON.parse(event.data).parts); });
      source.addEventListener("gap", (event) => add([["f8", `… ${JSON.parse(event.data).bytes} bytes were not kept …\n`]]));
      source.addEventListener("status", (event) => show(JSON.parse(event.data).status));
      source.addEventListener("progress", (event) => {
        const { done, total, text } = JSON.parse(event.data);
        progress.textContent = `${text} ${total ? `${Math.round(done)} of ${Math.round(total)}` : ""}`;
      });
      source.addEventListener("end", end);
      source.addEventListener("error", () => {
        if (source?.readyState !== EventSource.CLOSED) return; // the browser connects again
        source = null;
        timer = setTimeout(poll, 1000);
      });
    };
    const show = (name) => {
      const words = name === "started" ? "running" : name;
      if (status.textContent !== words) status.textContent = words;
    };
    const end = () => { close(); location.reload(); };
    const poll = async () => {
      let wait = 1000;
      try {
        const answer = await fetch(`${place.dataset.events}?poll=1&after=${after}`);
        if (answer.redirected || answer.status === 401) { end(); return; } // the session has ended: sign in again
        if (!answer.ok) throw new Error(answer.status);
        const found = await answer.json();
        if (found.bytes) add([["f8", `… ${found.bytes} bytes were not kept …\n`]]);
        add(found.parts);
        after = found.next;
        if (found.ended) { end(); return; }
        show(found.status);
        if (found.parts.length) wait = 250;
      } catch {
        wait = 5000; // the server is busy, or is starting again
      }
      timer = setTimeout(poll, wait);
    };
    const close = () => { source?.close(); source = null; clearTimeout(timer); };
    document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else open(); });
    addEventListener("pagehide", close);
    addEventListener("submit", close); // the end of a cancelled run must not stop the answer of the form
    if (!document.hidden) open();
  };
  const begin = () => { for (const place of document.querySelectorAll("[data-events]")) start(place); };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin); else begin();
})();
// Accept dropped files on the whole field. Without this script, only its button accepts them.
(() => {
  "use strict";
  for (const kind of ["dragover", "dragleave", "drop"]) document.addEventListener(kind, (event) => {
    const input = event.target.closest?.(".files")?.querySelector("input[type=file]");
    if (!input) return;
    input.classList.toggle("over", kind === "dragover");
    if (kind === "dragleave") return;
    event.preventDefault();
    if (kind === "dragover" || !event.dataTransfer.files.length) return;
    const kept = new DataTransfer();
    for (const file of [...event.dataTransfer.files].slice(0, input.multiple ? undefined : 1)) kept.items.add(file);
    input.files = kept.files;
    input.dispatchEvent(new Event("change", { bubbles: true }));
  });
})();
