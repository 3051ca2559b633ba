// Ranges of lines in a file: #L10-L20 marks the lines, Shift and a click on a number extends the range.
(() => {
  "use strict";
  const RANGE = /^#L(\d+)(?:-L(\d+))?$/;
  const mark = (scrolls) => {
    for (const one of document.querySelectorAll("[data-lines] .picked")) one.classList.remove("picked");
    const found = RANGE.exec(location.hash);
    if (!found?.[2] || !document.querySelector("[data-lines]")) return;
    const [low, high] = [Number(found[1]), Number(found[2])].sort((a, b) => a - b);
    for (let line = low; line <= high; line += 1) {
      const one = document.getElementById(`L${line}`);
      if (!one) break;
      one.classList.add("picked");
    }
    if (scrolls) document.getElementById(`L${low}`)?.scrollIntoView({ block: "center" });
  };
  const isOnNumber = (line, event) => {
    const width = Number.parseFloat(getComputedStyle(line, "::before").width);
    return event.clientX - line.closest("[data-lines]").getBoundingClientRect().left < width;
  };
  document.addEventListener("click", (event) => {
    const line = event.target.closest?.("[data-lines] [data-n]");
    if (!line || !isOnNumber(line, event)) return;
    const found = RANGE.exec(location.hash);
    if (!event.shiftKey || !found) { location.hash = line.id; return; }
    const [low, high] = [Number(found[1]), Number(line.dataset.n)].sort((a, b) => a - b);
    history.replaceState(null, "", `#L${low}-L${high}`);
    getSelection().removeAllRanges();
    mark(false);
  });
  // Each block of code in Markdown gets a button that copies it. The button lies on the block, so nothing moves.
  const copyCode = () => {
    for (const code of document.querySelectorAll(".prose pre.code")) {
      if (code.parentElement.classList.contains("copy")) continue;
      const frame = document.createElement("div");
      const button = document.createElement("button");
      frame.className = "copy";
      Object.assign(button, { type: "button", className: "btn small", textContent: "Copy" });
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
      code.replaceWith(frame);
      frame.append(code, button);
    }
  };
  addEventListener("hashchange", () => mark(true));
  document.addEventListener("skillery:part", () => { mark(true); copyCode(); });
  copyCode();
  mark(true); // the first event of the base script is before this one
})();
