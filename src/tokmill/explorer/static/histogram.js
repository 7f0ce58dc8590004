// A histogram, its sources one on the other, with thresholds as lines and one of them to drag.

import { count, figure, h, s } from "./dom.js";
import { spelled } from "./flow.js";

const HIGH = 230,
  LEFT = 46,
  BOTTOM = 26,
  TOP = 14;

// Round numbers on the axis, about six of them.
export function ticks(low, high, wanted = 6) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / wanted,
    power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough) || power;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step)
    found.push(Number(at.toPrecision(12)));
  return found;
}

export function histogram({ edges, series, thresholds, value, keep, onmove, onset, measure, hue }) {
  // drawn for the width that there is: letters stay legible on a phone
  const WIDTH = Math.max(330, Math.min(1000, document.getElementById("main").clientWidth - 32));
  const bins = edges.length - 1;
  const right = WIDTH - 8,
    wide = right - LEFT;
  const low = edges[0],
    high = edges[bins];
  // Edges may be spaced by quantity or by its logarithm: a bin is as wide as any other, and between edges it is straight.
  const xOf = (amount) => {
    if (!(amount > low)) return LEFT;
    if (amount >= high) return right;
    let at = 0,
      end = bins;
    while (end - at > 1) {
      const middle = (at + end) >> 1;
      if (edges[middle] <= amount) at = middle;
      else end = middle;
    }
    return LEFT + (wide * (at + (amount - edges[at]) / (edges[at + 1] - edges[at] || 1))) / bins;
  };
  const amountOf = (x) => {
    const place = Math.min(bins, Math.max(0, ((x - LEFT) / wide) * bins)),
      at = Math.min(bins - 1, Math.floor(place));
    return edges[at] + (place - at) * (edges[at + 1] - edges[at]);
  };
  const sums = Array.from({ length: bins }, (_, at) => series.reduce((sum, one) => sum + one.counts[at], 0));
  const most = Math.max(1, ...sums);
  const yOf = (amount) => TOP + HIGH * (1 - amount / most);
  const bars = [];
  for (let at = 0; at < bins; at++) {
    let below = 0;
    series.forEach((one) => {
      if (!one.counts[at]) return;
      const y0 = yOf(below),
        y1 = yOf(below + one.counts[at]);
      below += one.counts[at];
      bars.push(
        s("rect", {
          class: "mark h" + hue(one.name),
          x: LEFT + (wide * at) / bins + 0.5,
          y: y1,
          width: Math.max(0.6, wide / bins - 1),
          height: Math.max(0.6, y0 - y1),
          "data-tip": `${spelled(one.name)}, ${figure(edges[at])} to ${figure(edges[at + 1])}: ${count(one.counts[at])} documents`,
        }),
      );
    });
  }
  const grid = ticks(0, most, 4)
    .filter((one) => one > 0)
    .flatMap((one) => [
      s("line", { class: "gridline", x1: LEFT, x2: right, y1: yOf(one), y2: yOf(one) }),
      s("text", { class: "axis", x: LEFT - 6, y: yOf(one) + 4, "text-anchor": "end" }, shortCount(one)),
    ]);
  // Bins are even but for the first and the last, which reach as far as values do; or they grow by a factor.
  const inner = edges.slice(1, -1),
    pace = (inner[inner.length - 1] - inner[0]) / Math.max(1, inner.length - 1);
  const even = inner.every((one, at) => Math.abs(one - inner[0] - at * pace) < 1e-6 * Math.abs(pace * bins || 1));
  const spots = Math.max(3, Math.round(WIDTH / 160));
  const marks = even
    ? [
        low,
        ...ticks(inner.length ? inner[0] : low, inner.length ? inner[inner.length - 1] : high, WIDTH / 120).filter(
          (one) => xOf(one) > LEFT + 60 && xOf(one) < right - 60,
        ),
        high,
      ]
    : Array.from({ length: spots + 1 }, (_, at) => edges[Math.round((at * bins) / spots)]);
  const axis = marks.map((one, at) =>
    s(
      "text",
      {
        class: "axis",
        x: xOf(one),
        y: TOP + HIGH + 18,
        "text-anchor": xOf(one) > right - 30 ? "end" : at || xOf(one) > LEFT + 8 ? "middle" : "start",
      },
      figure(Number(one.toPrecision(4))),
    ),
  );
  // sources may have thresholds of their own: one line where they agree
  const bounds = new Map();
  for (const one of thresholds) bounds.set(one.value, [...(bounds.get(one.value) || []), one.source]);
  const lines = [...bounds].flatMap(([amount, sources]) => [
    s("line", { class: "bound-line", x1: xOf(amount), x2: xOf(amount), y1: TOP, y2: TOP + HIGH }),
    s(
      "text",
      {
        class: "axis bound",
        x: xOf(amount) + (xOf(amount) > right - 90 ? -5 : 5),
        "text-anchor": xOf(amount) > right - 90 ? "end" : "start",
        y: TOP + 10,
        "data-tip": sources.map(spelled).join(", "),
      },
      "now " + figure(amount) + (bounds.size > 1 ? " " + sources.map(spelled).join(", ") : ""),
    ),
  ]);
  const chart = s(
    "svg",
    {
      class: "chart histogram",
      viewBox: `0 0 ${WIDTH} ${TOP + HIGH + BOTTOM}`,
      role: "group",
      "aria-label": "histogram of " + measure,
    },
    grid,
    bars,
    s("line", { class: "baseline", x1: LEFT, x2: right, y1: TOP + HIGH, y2: TOP + HIGH }),
    axis,
  );
  const shade = s("rect", { class: "shade", y: TOP, height: HIGH });
  const stick = s("line", { class: "stick", y1: TOP - 4, y2: TOP + HIGH });
  const knob = s("circle", { class: "knob", cy: TOP + HIGH, r: 7 });
  const handle = s(
    "g",
    {
      class: "handle",
      tabindex: 0,
      role: "slider",
      "aria-label": "threshold of " + measure,
      "aria-valuemin": low,
      "aria-valuemax": high,
    },
    s("rect", { class: "grip", y: 0, width: 24, height: TOP + HIGH + BOTTOM }),
    stick,
    knob,
  );
  let now = value;
  const paint = () => {
    const x = xOf(now);
    for (const one of [stick]) {
      one.setAttribute("x1", x);
      one.setAttribute("x2", x);
    }
    knob.setAttribute("cx", x);
    handle.firstChild.setAttribute("x", x - 12);
    const dropsBelow = keep !== "max";
    shade.setAttribute("x", dropsBelow ? LEFT : x);
    shade.setAttribute("width", Math.max(0, dropsBelow ? x - LEFT : right - x));
    handle.setAttribute("aria-valuenow", now);
    handle.setAttribute("aria-valuetext", figure(now));
  };
  const whole = edges.every((one) => Number.isInteger(one)) || (high - low) / bins >= 2;
  const round = (amount) => (whole ? Math.round(amount) : Number(amount.toPrecision(4)));
  const set = (amount, isLast) => {
    now = round(Math.min(high, Math.max(low, amount)));
    paint();
    (isLast ? onset : onmove)(now);
  };
  const place = (event) => {
    const box = chart.getBoundingClientRect();
    return amountOf(((event.clientX - box.left) / box.width) * WIDTH);
  };
  let dragged = false;
  const begin = (event) => {
    dragged = true;
    chart.setPointerCapture(event.pointerId);
    handle.focus();
    set(place(event), false);
    event.preventDefault();
  };
  chart.addEventListener("pointerdown", begin);
  chart.addEventListener("pointermove", (event) => {
    if (dragged) set(place(event), false);
  });
  const end = (event) => {
    if (dragged) {
      dragged = false;
      set(place(event), true);
    }
  };
  chart.addEventListener("pointerup", end);
  chart.addEventListener("pointercancel", end);
  handle.addEventListener("keydown", (event) => {
    const x = xOf(now),
      pace = (event.shiftKey ? 10 : 1) * (wide / bins / (whole && (high - low) / bins >= 2 ? 4 : 2));
    const ways = {
      ArrowRight: x + pace,
      ArrowUp: x + pace,
      ArrowLeft: x - pace,
      ArrowDown: x - pace,
      PageUp: x + 10 * pace,
      PageDown: x - 10 * pace,
      Home: LEFT,
      End: right,
    };
    if (!(event.key in ways)) return;
    event.preventDefault();
    let amount = round(amountOf(ways[event.key]));
    if (whole && amount === now) amount += ways[event.key] > x ? 1 : -1;
    set(amount, true);
  });
  chart.append(shade, ...lines, handle);
  paint();
  return {
    node: chart,
    handle,
    move: (amount) => {
      now = amount;
      paint();
    },
  };
}

const shortCount = (amount) =>
  amount >= 1e6 ? amount / 1e6 + " M" : amount >= 1e3 ? amount / 1e3 + " k" : String(Number(amount.toPrecision(3)));

export const legend = (series, hue) =>
  h(
    "p",
    { class: "legend" },
    series.map((one) => h("span", {}, h("i", { class: "b" + hue(one.name) }), spelled(one.name))),
  );
