"use strict";
// Theme and tips: of reports, and of the explorer, which serves this file.
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const place = button.querySelector("span") || button;
  const modes = ["auto", "light", "dark"];
  let mode = "auto";
  try { mode = localStorage.getItem("tokmill-theme") || "auto"; } catch (_) { /* a file or a frame may have no storage */ }
  if (!modes.includes(mode)) mode = "auto";
  const paint = () => {
    if (mode === "auto") root.removeAttribute("data-theme"); else root.dataset.theme = mode;
    place.textContent = mode;
    if (place === button) button.setAttribute("aria-label", "Theme: " + mode);
  };
  button.addEventListener("click", () => {
    mode = modes[(modes.indexOf(mode) + 1) % modes.length];
    try { localStorage.setItem("tokmill-theme", mode); } catch (_) { /* likewise */ }
    paint();
  });
  paint();

  const tip = document.getElementById("tip");
  document.addEventListener("pointermove", (event) => {
    const mark = event.target.closest ? event.target.closest("[data-tip]") : null;
    tip.hidden = !mark;
    if (!mark) return;
    tip.textContent = mark.dataset.tip;
    const x = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    const y = event.clientY + 18 + tip.offsetHeight > window.innerHeight
      ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18;
    tip.style.left = Math.max(x, 4) + "px";
    tip.style.top = y + "px";
  });
  document.addEventListener("pointerleave", () => { tip.hidden = true; });
})();
