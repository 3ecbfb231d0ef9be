"use strict";
{
  const tip = document.getElementById("tip");
  let shown = null;

  const hide = () => {
    if (shown) shown.classList.remove("said");
    shown = null;
    tip.hidden = true;
  };

  const show = (mark) => {
    if (mark === shown) return;
    hide();
    if (!mark) return;
    shown = mark;
    mark.classList.add("said");
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    const box = mark.getBoundingClientRect();
    const room = document.documentElement.clientWidth;
    const left = Math.min(Math.max(8, box.left + box.width / 2 - tip.offsetWidth / 2), room - tip.offsetWidth - 8);
    const above = box.top - tip.offsetHeight - 8;
    tip.style.left = `${left + scrollX}px`;
    tip.style.top = `${(above < 0 ? box.bottom + 8 : above) + scrollY}px`;
  };

  // The mark under the pointer, or a point close to it: a finger is wider than a point.
  const nearest = (drawn, x, y) => {
    const under = document.elementFromPoint(x, y)?.closest("[data-tip]");
    if (under) return under;
    let best = null;
    let least = 24;
    for (const mark of drawn.querySelectorAll("path[data-tip]")) {
      const box = mark.getBoundingClientRect();
      if (!box.width) continue;
      const apart = Math.hypot(box.left + box.width / 2 - x, box.top + box.height / 2 - y);
      if (apart < least) [best, least] = [mark, apart];
    }
    return best;
  };

  for (const drawn of document.querySelectorAll(".drawn")) {
    for (const kind of ["pointermove", "pointerdown"])
      drawn.addEventListener(kind, (event) => show(nearest(drawn, event.clientX, event.clientY)));
    drawn.addEventListener("pointerleave", hide);
    drawn.addEventListener("blur", hide);
    drawn.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") hide();
      if (!step) return;
      const marks = [...drawn.querySelectorAll("[data-tip]")].filter((mark) => mark.getBoundingClientRect().width);
      if (!marks.length) return;
      event.preventDefault();
      const at = marks.indexOf(shown);
      show(marks[at < 0 ? (step > 0 ? 0 : marks.length - 1) : (at + step + marks.length) % marks.length]);
    });
  }

  for (const button of document.querySelectorAll("[data-copies]"))
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copies);
      try {
        await navigator.clipboard.writeText(source.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(source);
        button.textContent = "Selected: press Ctrl+C";
      }
    });

  const open = (id) => {
    for (let at = document.getElementById(id); at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  };
  addEventListener("hashchange", () => open(location.hash.slice(1)));
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((fold) => (fold.open = true)));
}
