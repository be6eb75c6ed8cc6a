// Filters findings and invariants, copies commands, and opens what is folded before the page is printed.
// The page reads well without it.
"use strict";

const count = (number) => number.toLocaleString("en");

class Filter {
  constructor(form) {
    this.form = form;
    this.items = [...document.getElementById(form.dataset.filters).children];
    this.texts = new Map(this.items.map((item) => [item, item.textContent.toLowerCase()]));
    form.hidden = false;
    form.addEventListener("input", () => this.apply());
    form.addEventListener("submit", (event) => event.preventDefault());
    this.apply();
  }

  apply() {
    const words = this.form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kind = this.form.elements.kind.value;
    let shown = 0;
    for (const item of this.items) {
      const fits = (!kind || item.dataset.kind === kind) && words.every((word) => this.texts.get(item).includes(word));
      item.hidden = !fits;
      shown += fits;
    }
    this.form.querySelector(".shown").textContent = `${count(shown)} of ${count(this.items.length)} shown`;
  }

  clear() {
    this.form.reset();
    this.apply();
  }
}

const filters = [...document.querySelectorAll("form.filter")].map((form) => new Filter(form));

// A link must lead to what it names, whatever the filters say and whatever is folded.
function reveal() {
  let name = location.hash.slice(1);
  try {
    name = decodeURIComponent(name);
  } catch {
    return; // not one of our links
  }
  const target = document.getElementById(name);
  if (!target) return;
  for (const filter of filters) {
    if (target.hidden && filter.texts.has(target)) filter.clear();
  }
  for (let around = target.parentElement; around; around = around.parentElement) {
    if (around.tagName === "DETAILS") around.open = true;
  }
  if (target.matches("tr, article")) {
    target.scrollIntoView({ block: target.matches("tr") ? "center" : "start" });
    target.focus({ preventScroll: true });
  }
}

window.addEventListener("hashchange", reveal);
reveal();

// Where the browser gives a page no clipboard, the text is selected and copied as by hand.
async function copied(source) {
  try {
    await navigator.clipboard.writeText(source.textContent);
    return true;
  } catch {
    getSelection().selectAllChildren(source);
    return document.execCommand("copy");
  }
}

for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const done = await copied(document.getElementById(button.dataset.copies));
    button.textContent = done ? "Copied" : "Selected";
    document.getElementById("announced").textContent = done ? "Copied" : "Selected: copy it with the keyboard";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
}

let opened = [];
window.addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open]):not(.mute)")];
  for (const one of opened) one.open = true;
});
window.addEventListener("afterprint", () => {
  for (const one of opened) one.open = false;
});
