// The script of all pages: local times, copying, keys, folds. It writes texts with textContent only.
(() => {
  "use strict";
  const root = document.documentElement;
  // The first format of dates takes the browser about 20 ms, so it is made in a task of its own.
  let formats = null;
  const madeFormats = () => {
    const exact = new Intl.DateTimeFormat(navigator.language, { dateStyle: "medium", timeStyle: "short" });
    const day = new Intl.DateTimeFormat(navigator.language, { dateStyle: "medium" });
    return { exact, day, zone: exact.resolvedOptions().timeZone };
  };
  const WEEK = 7 * 24 * 3600 * 1000;

  const localTimes = (part) => {
    formats ??= madeFormats();
    const { exact, day, zone } = formats;
    const place = part.querySelector("[data-zone]");
    if (place) place.textContent = `Times in ${zone}`;
    for (const one of part.querySelectorAll("time[datetime]")) {
      const when = new Date(one.dateTime);
      if (Number.isNaN(when.getTime())) continue;
      one.title = `${exact.format(when)} (${zone})`;
      if (Math.abs(Date.now() - when.getTime()) > WEEK && !one.dataset.local) {
        one.textContent = day.format(when);
        one.dataset.local = "1";
      }
    }
  };

  const copyButtons = (part) => {
    for (const one of part.querySelectorAll("[data-copy]")) {
      one.hidden = false;
      if (one.dataset.ready) continue;
      one.dataset.ready = "1";
      one.addEventListener("click", async () => {
        const source = document.getElementById(one.dataset.copy);
        const before = one.textContent;
        await navigator.clipboard.writeText(source ? source.textContent.trim() : "");
        one.textContent = "Copied";
        setTimeout(() => { one.textContent = before; }, 1500);
      });
    }
  };

  const prepare = (part) => {
    setTimeout(() => localTimes(part));
    copyButtons(part);
    document.dispatchEvent(new CustomEvent("skillery:part", { detail: part }));
  };

  const fields = "input, textarea, select, [contenteditable]";
  const places = { s: "/", r: "/runs", v: "/review", p: "/publish" };
  let isGoing = false;
  const rows = () => [...document.querySelectorAll("[data-rows] > li, [data-rows] tbody > tr")];

  const moveRow = (step) => {
    const all = rows();
    const current = all.findIndex((one) => one.contains(document.activeElement));
    const next = all[Math.min(all.length - 1, Math.max(0, current + step))];
    const link = next?.querySelector("a");
    if (link) link.focus();
  };

  const moveChange = (step) => {
    const all = [...document.querySelectorAll("[data-change]")];
    const top = (one) => one.getBoundingClientRect().top;
    const current = all.findIndex((one) => one.contains(document.activeElement));
    const isSeen = current >= 0 && top(all[current]) > -10 && top(all[current]) < innerHeight;
    let next = all[current + step];
    if (!isSeen) next = step > 0 ? all.find((one) => top(one) > 60) : all.reverse().find((one) => top(one) < -10);
    if (next) { next.scrollIntoView({ block: "start" }); next.focus({ preventScroll: true }); }
  };

  const focusOn = (id) => {
    const found = document.getElementById(id);
    if (found) { found.scrollIntoView(); found.focus({ preventScroll: true }); }
  };

  document.addEventListener("keydown", (event) => {
    if (root.dataset.keys === "off" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest?.(fields) || document.querySelector("dialog[open]")) return;
    const wasGoing = isGoing;
    isGoing = false;
    if (wasGoing && places[event.key]) { location.assign(places[event.key]); return; }
    const actions = {
      "/": () => document.querySelector("[type=search]")?.focus(),
      j: () => moveRow(1), k: () => moveRow(-1),
      g: () => { isGoing = true; },
      y: () => {
        const exactly = document.querySelector("[data-exact]");
        if (exactly) location.assign(exactly.dataset.exact + location.hash);
      },
      n: () => moveChange(1), p: () => moveChange(-1),
      f: () => focusOn("findings"), a: () => focusOn("decide"),
      "?": () => document.getElementById("keys")?.showModal(),
    };
    if (actions[event.key]) { event.preventDefault(); actions[event.key](); }
  });

  document.addEventListener("click", (event) => {
    const opener = event.target.closest?.("[data-open]");
    if (opener) document.getElementById(opener.dataset.open)?.showModal();
  });

  // Folds keep their state for the tab, by the address of the page and their name.
  document.addEventListener("toggle", (event) => {
    const name = event.target.dataset?.fold;
    if (name) sessionStorage.setItem(`fold:${name}`, event.target.open ? "1" : "0");
  }, true);

  // "Back" to the answer of a refused form opens the page of the form. Browsers would ask to send the first form again.
  document.addEventListener("submit", () => history.replaceState(history.state, "", location.href));

  const start = () => {
    for (const one of document.querySelectorAll("[data-open]")) one.disabled = false;
    for (const one of document.querySelectorAll("details[data-fold]")) {
      const kept = sessionStorage.getItem(`fold:${one.dataset.fold}`);
      if (kept !== null) one.open = kept === "1";
    }
    prepare(document);
    document.querySelector("[aria-invalid=true], [data-first-problem]")?.focus();
  };
  document.addEventListener("htmx:after:swap", () => prepare(document));
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start); else start();
})();
