// Dropped folders and archives. The limits are checked before anything is sent.
(() => {
  "use strict";
  const filesOf = async (entry, path, found) => {
    const name = path ? `${path}/${entry.name}` : entry.name;
    if (entry.isFile) {
      found.push({ name, file: await new Promise((done, fail) => entry.file(done, fail)) });
      return;
    }
    const reader = entry.createReader();
    for (;;) { // readEntries returns at most 100 entries for one call
      const some = await new Promise((done, fail) => reader.readEntries(done, fail));
      if (!some.length) return;
      for (const one of some) await filesOf(one, name, found);
    }
  };
  const start = () => {
    const form = document.querySelector("[data-upload]");
    if (!form) return;
    const zone = form.querySelector("[data-drop]");
    const said = form.querySelector("[data-said]");
    const say = (text) => { said.textContent = text; };
    const send = (found) => {
      const kept = found.filter((one) => !one.name.split("/").some((part) => part.startsWith(".")));
      const bytes = kept.reduce((sum, one) => sum + one.file.size, 0);
      if (!kept.length) return say("There is nothing to send.");
      if (kept.length > Number(form.dataset.mostFiles)) return say(`${kept.length} files are too many.`);
      if (bytes > Number(form.dataset.mostMb) * 1e6) return say(`${Math.ceil(bytes / 1e6)} MB are too many.`);
      const data = new FormData();
      data.append("form_token", form.elements.form_token.value);
      for (const one of kept) data.append("files", one.file, one.name);
      const request = new XMLHttpRequest();
      request.open("POST", form.action);
      request.responseType = "document";
      request.setRequestHeader("Accept", "text/html");
      request.upload.addEventListener("progress", (event) => say(`Sending: ${Math.round((100 * event.loaded) / event.total)} %`));
      request.addEventListener("error", () => say("The server did not answer. Try again."));
      request.addEventListener("load", () => {
        if (request.status < 400) { location.assign(request.responseURL); return; }
        if (request.status === 401) { location.assign(`/login?next=${encodeURIComponent(location.pathname)}`); return; }
        const problem = request.response?.querySelector("[role=alert], main p + h1 + p");
        say(problem?.textContent ?? `The server refused the upload (${request.status}).`);
      });
      const left = found.length - kept.length;
      say(left ? `Sending ${kept.length} files. ${left} hidden files are left out.` : `Sending ${kept.length} files.`);
      request.send(data);
    };
    zone.addEventListener("dragover", (event) => { event.preventDefault(); zone.classList.add("over"); });
    zone.addEventListener("dragleave", () => zone.classList.remove("over"));
    zone.addEventListener("drop", async (event) => {
      event.preventDefault();
      zone.classList.remove("over");
      const entries = [...event.dataTransfer.items].map((one) => one.webkitGetAsEntry()).filter(Boolean);
      const found = [];
      for (const entry of entries) await filesOf(entry, "", found);
      send(found);
    });
    form.addEventListener("submit", (event) => {
      const chosen = [...form.elements.files.files, ...form.elements.archive.files];
      event.preventDefault();
      send(chosen.map((file) => ({ name: file.webkitRelativePath || file.name, file })));
    });
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start); else start();
})();
