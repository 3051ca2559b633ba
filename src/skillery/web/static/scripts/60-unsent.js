// The text of a form stays in this tab while the user signs in again. It is removed by the next page otherwise.
(() => {
  "use strict";
  const KEY = "unsent";
  const HOUR = 3600 * 1000;
  const LONGEST = 1e6;
  const untyped = new Set(["hidden", "password", "file", "submit", "button", "reset", "image"]);
  const user = () => document.querySelector("[data-user]")?.dataset.user ?? "";
  const here = () => location.pathname + location.search;

  const read = () => {
    try {
      const kept = JSON.parse(sessionStorage.getItem(KEY));
      return kept && Date.now() - kept.at < HOUR ? kept : null;
    } catch { return null; }
  };
  const write = (kept) => {
    try {
      if (kept) sessionStorage.setItem(KEY, JSON.stringify(kept)); else sessionStorage.removeItem(KEY);
      return true;
    } catch { return false; } // no room, or no storage: the page of the server keeps the text
  };

  const typed = (form) => [...form.elements].filter((one) => one.name && !untyped.has(one.type) && !one.disabled);
  const isTick = (one) => one.type === "checkbox" || one.type === "radio";
  const textOf = (one) => (isTick(one) ? [one.name, one.value, one.checked] : [one.name, one.value]);
  const buttonOf = (one) => (one?.name ? [one.name, one.value] : null);

  document.addEventListener("submit", (event) => {
    const form = event.target;
    const action = new URL(form.action, location.href);
    if (form.method !== "post" || action.origin !== location.origin || action.pathname === "/login") return;
    const fields = typed(form).map(textOf);
    const kept = { at: Date.now(), page: here(), action: action.pathname, user: user(), button: buttonOf(event.submitter), fields };
    const isKept = action.pathname !== "/logout" && fields.length && JSON.stringify(fields).length < LONGEST;
    write(isKept ? kept : null);
  }, true);

  const hasButton = (form, button) =>
    !button || [...form.elements].some((one) => one.name === button[0] && one.value === button[1]);
  const fits = (form, kept) =>
    form.method === "post" && new URL(form.action, location.href).pathname === kept.action && hasButton(form, kept.button)
    && kept.fields.every(([name]) => form.elements[name]);

  const fill = (form, kept) => {
    const fields = typed(form);
    let first = null;
    for (const [name, value, checked] of kept.fields) {
      const found = fields.find((one) => one.name === name && (!isTick(one) || one.value === value));
      if (!found) continue;
      if (isTick(found)) found.checked = checked; else found.value = value;
      first ??= found;
      const fold = found.closest("details");
      if (fold) fold.open = true;
    }
    const line = document.createElement("p");
    line.className = "note ok";
    line.setAttribute("role", "status");
    line.textContent = "Your text is back. It was not sent yet.";
    form.before(line);
    first?.focus();
  };

  // The script brings the text back to its form, so the sign-in needs neither a copy of the text nor another tab.
  const simplify = (part, kept) => {
    for (const name of ["kept", "kept_for"]) part.querySelector(`input[name=${name}]`)?.remove();
    const next = part.querySelector("form[action='/login'] input[name=next]");
    if (next) next.value = kept.page;
    for (const one of part.querySelectorAll("a[data-same-tab]")) {
      one.removeAttribute("target");
      one.querySelector(".unseen")?.remove();
      one.search = new URLSearchParams({ next: kept.page }).toString();
    }
    for (const one of part.querySelectorAll("form[data-same-tab]")) one.hidden = true;
  };

  const start = () => {
    const kept = read();
    const signIn = document.querySelector("[data-sign-in]");
    if (!kept) { write(null); return; }
    if (signIn) {
      if (write({ ...kept, isLost: true })) simplify(signIn, kept);
      return;
    }
    const form = kept.isLost && kept.user === user() && [...document.forms].find((one) => fits(one, kept));
    write(null);
    if (form) fill(form, kept);
  };
  document.addEventListener("htmx:after:swap", () => write(null)); // the form was answered
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start); else start();
})();
