// Shows the numbers of the step under the mouse, finger or arrow keys. The page is complete without it.
"use strict";

const formatted = (value) => (value === null ? "not finite" : Number(value.toPrecision(6)).toString());

class Picture {
  constructor(area) {
    const { at, steps, lines } = JSON.parse(area.dataset.points);
    Object.assign(this, { area, at, steps, lines, place: -1 });
    this.mark = area.querySelector(".here");
    this.readout = area.closest("figure").querySelector(".readout");
    this.before = this.readout.textContent;
    area.addEventListener("pointermove", (event) => this.point(event));
    area.addEventListener("pointerdown", (event) => this.point(event));
    area.addEventListener("pointerleave", () => this.show(-1));
    area.addEventListener("blur", () => this.show(-1));
    area.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by || !steps.length) return;
      event.preventDefault();
      this.show(Math.min(Math.max(this.place + by, 0), steps.length - 1));
    });
  }

  point(event) {
    const box = this.area.getBoundingClientRect();
    const x = (100 * (event.clientX - box.left)) / box.width;
    let nearest = -1;
    this.at.forEach((place, number) => {
      if (nearest < 0 || Math.abs(place - x) < Math.abs(this.at[nearest] - x)) nearest = number;
    });
    this.show(nearest);
  }

  show(place) {
    this.place = place;
    this.mark.setAttribute("visibility", place < 0 ? "hidden" : "visible");
    if (place < 0) {
      this.readout.textContent = this.before;
      return;
    }
    for (const end of ["x1", "x2"]) this.mark.setAttribute(end, this.at[place]);
    const values = this.lines.map((line) => `${line.name} ${formatted(line.values[place])}`);
    this.readout.textContent = `step ${this.steps[place].toLocaleString("en")}: ${values.join(", ")}`;
  }
}

for (const area of document.querySelectorAll(".area")) new Picture(area);

let opened = [];
window.addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const one of opened) one.open = true;
});
window.addEventListener("afterprint", () => {
  for (const one of opened) one.open = false;
});
