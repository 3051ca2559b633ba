// The live log of a run: server-sent events, one stream for a page, closed while the page is hidden.
(() => {
  "use strict";
  const MOST_PARTS = 5000;
  const start = (place) => {
    const log = place.querySelector("[data-log]");
    const status = document.querySelector("[data-status]");
    let after = place.dataset.after;
    let source = null;
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
      source.addEventListener("status", (event) => {
        const name = JSON.parse(event.data).status;
        const words = name === "started" ? "running" : name;
        if (status.textContent !== words) status.textContent = words;
      });
      source.addEventListener("end", () => { close(); location.reload(); });
    };
    const close = () => { source?.close(); source = null; };
    document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else open(); });
    addEventListener("pagehide", close);
    addEventListener("submit", close); // the end of a cancelled run must not stop the answer of the form
    if (!document.hidden) open();
  };
  const begin = () => { for (const place of document.querySelectorAll("[data-events]")) start(place); };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin); else begin();
})();
