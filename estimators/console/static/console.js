// What a page does beside being read: it stays fresh, its log is scrolled through, its charts say their values.
"use strict";

// A page asks for itself again, and takes over what is marked as live and has changed. Who fails is asked less often.
const LONGEST_PAUSE = 60;

function keepFresh() {
  let seconds = Number(document.body.dataset.poll);
  if (!seconds) return;
  let failures = 0;
  const freshness = document.querySelector(".freshness");
  const wait = () => setTimeout(look, 1000 * Math.min(LONGEST_PAUSE, seconds * 2 ** failures));
  async function look() {
    if (document.hidden) {
      document.addEventListener("visibilitychange", look, { once: true });
      return;
    }
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      if (!answer.ok) throw new Error(`${answer.status}`);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      document.querySelectorAll("[data-live]").forEach((part) => takeOver(part, fresh.getElementById(part.id)));
      failures = 0;
      freshness.hidden = true;
      seconds = Number(fresh.body.dataset.poll);
      if (!seconds) return;
    } catch {
      failures += 1;
      freshness.hidden = false;
      freshness.textContent = "not up to date: there is no answer";
    }
    wait();
  }
  wait();
}

function takeOver(part, fresh) {
  if (!fresh || part.innerHTML === fresh.innerHTML) return;
  const focused = part.contains(document.activeElement) ? document.activeElement : null;
  if (part.querySelector("details[open]") || part.querySelector(".cursor")) return; // it is being used
  const checked = new Set([...part.querySelectorAll("input:checked")].map((each) => each.value));
  const same = focused && ((each) => each.href === focused.href && each.value === focused.value);
  part.replaceChildren(...fresh.cloneNode(true).childNodes);
  part.querySelectorAll("input[type=checkbox]").forEach((each) => (each.checked = checked.has(each.value)));
  if (same) [...part.querySelectorAll("a, input, summary")].find(same)?.focus();
}

// The log: of its lines only those in sight are in the page, however many there are.
const LINE_HEIGHT = 20;
const AROUND = 60; // lines above and below what is in sight
const MOST_PIXELS = 15_000_000; // browsers know no taller elements: then a pixel is more than a line's share

function showLog(box) {
  const space = box.querySelector(".log-space");
  const shown = box.querySelector(".log-lines");
  const form = document.getElementById("log-search");
  const count = document.getElementById("log-count");
  let total = 0;
  let asked = 0;
  let timer = 0;
  let failures = 0;
  let lastTop = 0;

  const height = () => Math.min(MOST_PIXELS, total * LINE_HEIGHT);
  const inSight = () => Math.ceil(box.clientHeight / LINE_HEIGHT);
  const firstInSight = () => {
    const way = height() - box.clientHeight;
    return way <= 0 ? 0 : Math.floor((box.scrollTop / way) * Math.max(0, total - inSight()));
  };

  async function load() {
    clearTimeout(timer);
    const mine = ++asked;
    const follow = form.follow.checked;
    const start = follow ? -(inSight() + AROUND) : Math.max(0, firstInSight() - AROUND);
    const query = new URLSearchParams({
      start,
      count: inSight() + 2 * AROUND,
      search: form.search.value,
      host: form.host.value,
    });
    let answer;
    try {
      const response = await fetch(`${box.dataset.lines}?${query}`);
      if (!response.ok) throw new Error(`${response.status}`);
      answer = await response.json();
      failures = 0;
    } catch {
      failures += 1;
      count.textContent = "no answer";
      timer = setTimeout(load, 1000 * Math.min(LONGEST_PAUSE, 2 ** failures));
      return;
    }
    if (mine !== asked) return; // a newer question is under way
    total = answer.total;
    space.style.setProperty("height", `${height()}px`);
    draw(answer);
    if (follow) box.scrollTop = lastTop = Math.max(0, height() - box.clientHeight);
    place(answer);
    say(answer);
    if (!answer.has_ended || !answer.is_read) timer = setTimeout(whenSeen, 1500);
  }

  function whenSeen() {
    if (document.hidden) document.addEventListener("visibilitychange", load, { once: true });
    else load();
  }

  function draw(answer) {
    const search = form.search.value.toLowerCase();
    shown.replaceChildren(
      ...answer.lines.map(([number, time, host, text]) => {
        const line = document.createElement("div");
        line.className = "log-line";
        line.append(cell("log-number", number), cell("log-time", clock(time)), cell("log-host", host));
        line.append(marked(text, search));
        return line;
      }),
    );
  }

  function place(answer) {
    const scaled = total * LINE_HEIGHT > MOST_PIXELS;
    const top = scaled ? box.scrollTop - (firstInSight() - answer.start) * LINE_HEIGHT : answer.start * LINE_HEIGHT;
    shown.style.setProperty("top", `${top}px`);
  }

  function say(answer) {
    const what = form.search.value || form.host.value ? "found" : "lines";
    const parts = [`${total.toLocaleString()} ${what}`];
    if (answer.dropped) parts.push(`the first ${answer.dropped.toLocaleString()} are not kept`);
    if (!answer.is_read) parts.push("reading on …");
    count.textContent = parts.join(", ");
  }

  let soon = 0;
  const later = (milliseconds) => {
    clearTimeout(soon);
    soon = setTimeout(load, milliseconds);
  };
  box.addEventListener("scroll", () => {
    if (box.scrollTop === lastTop) return; // to the side, or by the following itself
    const atEnd = box.scrollTop + box.clientHeight >= height() - 2;
    if (box.scrollTop < lastTop - 2) form.follow.checked = false;
    else if (atEnd) form.follow.checked = true;
    lastTop = box.scrollTop;
    later(40);
  });
  form.addEventListener("input", () => later(200));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    load();
  });
  addEventListener("resize", () => later(200));
  load();
}

function cell(name, text) {
  const element = document.createElement("span");
  element.className = name;
  element.textContent = text;
  return element;
}

function marked(text, search) {
  const element = cell("log-text", "");
  const lower = text.toLowerCase();
  let at = 0;
  if (search && lower.length === text.length) {
    for (let found = lower.indexOf(search); found >= 0; found = lower.indexOf(search, at)) {
      const mark = document.createElement("mark");
      mark.textContent = text.slice(found, found + search.length);
      element.append(text.slice(at, found), mark);
      at = found + search.length;
    }
  }
  element.append(text.slice(at));
  return element;
}

const clock = (milliseconds) => new Date(milliseconds).toLocaleTimeString([], { hour12: false });

// A chart says its values where the pointer is: those of the lines that are drawn.
function sayValues(event) {
  const chart = event.target.closest?.("svg.chart");
  document.querySelectorAll(".cursor").forEach((each) => each.ownerSVGElement !== chart && forget(each));
  if (!chart) return;
  const numbers = (name) => chart.dataset[name].split(" ").map(Number);
  const [left, right, bottom, top] = numbers("box");
  const frame = chart.getBoundingClientRect();
  const x = ((event.clientX - frame.left) / frame.width) * chart.viewBox.baseVal.width;
  const nearest = new Map();
  let at = null;
  for (const line of chart.querySelectorAll("polyline, circle")) {
    const points = line.points ? [...line.points] : [{ x: line.cx.baseVal.value, y: line.cy.baseVal.value }];
    for (const point of points) {
      const before = nearest.get(line.dataset.job);
      if (!before || Math.abs(point.x - x) < Math.abs(before.x - x)) nearest.set(line.dataset.job, point);
    }
  }
  const between = ([low, high], share) => low + (high - low) * share;
  const values = [...nearest.values()].map((point) => {
    at = at === null || Math.abs(point.x - x) < Math.abs(at - x) ? point.x : at;
    const value = between(numbers("y"), (point.y - bottom) / (top - bottom));
    return (chart.dataset.log ? 10 ** value : value).toPrecision(3);
  });
  if (at === null) return;
  const place = between(numbers("x"), (at - left) / (right - left));
  const unit = chart.dataset.over === "step" ? "step " : "";
  const text = `${unit}${Math.round(place)}${unit ? "" : " s"}: ${values.join(" · ")}`;
  chart.closest("figure").querySelector(".readout").textContent = text;
  let cursor = chart.querySelector(".cursor");
  if (!cursor) {
    cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
    cursor.setAttribute("class", "cursor");
    cursor.setAttribute("y1", top);
    cursor.setAttribute("y2", bottom);
    chart.append(cursor);
  }
  cursor.setAttribute("x1", at);
  cursor.setAttribute("x2", at);
}

function forget(cursor) {
  cursor.closest("figure").querySelector(".readout").textContent = "";
  cursor.remove();
}

addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("input, select, textarea");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const search = document.querySelector("[data-slash]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  }
  if (event.key === "Escape") document.querySelectorAll("details.action[open]").forEach((each) => (each.open = false));
});
addEventListener("pointermove", sayValues);
document.querySelectorAll("[data-submit]").forEach((each) => {
  each.addEventListener("change", () => each.form.requestSubmit());
});
const log = document.getElementById("log");
if (log) showLog(log);
keepFresh();
