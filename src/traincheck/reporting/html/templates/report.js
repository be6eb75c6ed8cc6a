// Filters the table of invariants, and opens what is folded before the page is printed. The page reads well without it.
"use strict";

const filter = document.getElementById("filter");
const rows = [...document.querySelectorAll("#rules tbody tr")];
const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));

function apply() {
  const words = filter.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
  const verdict = filter.elements.verdict.value;
  let shown = 0;
  for (const row of rows) {
    const fits = (!verdict || row.dataset.verdict === verdict) && words.every((word) => texts.get(row).includes(word));
    row.hidden = !fits;
    shown += fits;
  }
  document.getElementById("shown").textContent = `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} shown`;
}

// A link to a rule must lead to it, whatever the filter says.
function reveal() {
  const row = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!row || !texts.has(row)) return;
  if (row.hidden) {
    filter.reset();
    apply();
  }
  row.scrollIntoView({ block: "center" });
  row.focus({ preventScroll: true });
}

if (filter) {
  filter.hidden = false;
  filter.addEventListener("input", apply);
  filter.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", reveal);
  apply();
  reveal();
}

const folded = () => [...document.querySelectorAll("details:not([open])")];
let opened = [];
window.addEventListener("beforeprint", () => {
  opened = folded();
  for (const one of opened) one.open = true;
});
window.addEventListener("afterprint", () => {
  for (const one of opened) one.open = false;
});
