// Search while the user types: from two letters on. The number of skills is spoken once, after the last change.
(() => {
  "use strict";
  let saying;
  document.addEventListener("htmx:config:request", (event) => {
    const form = event.target.closest?.("[data-typeahead]");
    if (form && form.elements.q.value.trim().length === 1) event.preventDefault();
  });
  document.addEventListener("htmx:after:swap", () => {
    clearTimeout(saying);
    saying = setTimeout(() => {
      const count = document.querySelector("[data-count]");
      const said = document.querySelector("[data-said]");
      if (count && said) said.textContent = count.textContent;
    }, 700);
  });
})();
