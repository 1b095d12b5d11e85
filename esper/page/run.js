"use strict";
// Draws the traces of a run. Columns are flat: the row of host h and epoch e (from 0) is h * steps + e.
const STAGES = ["germinated", "training", "blending", "holding", "fossilized", "pruned", "embargoed"];
const SVG = "http://www.w3.org/2000/svg";
const LANE = 11, GAP = 2, SHADES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8a6d00", "#555"];
const byId = (id) => document.getElementById(id);
const SCORE = document.querySelector("main").dataset.score;
let traces = [], trace = null, chosen = 0;

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}
function make(name, attributes = {}, ...children) {
  const node = SVG_NAMES.has(name) ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
const MOST_CHOICES = 30;
const SVG_NAMES = new Set(["svg", "rect", "line", "polyline", "circle", "text", "g"]);
const format = (value, digits = 3) => value === null || value === undefined ? "–" : String(Number(value.toPrecision(digits)));
const narrow = () => matchMedia("(max-width: 40rem)").matches;
const level = (value) => value === null || value === undefined ? "–" : value.toFixed(1) === "-0.0" ? "0.0" : value.toFixed(1);
const letters = (name) => name.split("_").map((word) => word[0]).join("").toUpperCase().padEnd(2, (name[1] ?? "").toUpperCase()).slice(0, 2);

// ---- reading a trace
const column = (name) => trace.columns[name];
function at(name, row) {
  const values = column(name);
  if (values === undefined) return null;
  if (Array.isArray(values)) return values[row];
  return values.at[row] < 0 ? null : values.names[values.at[row]];
}
const row = (host, epoch) => host * trace.steps + epoch;
const last = (host) => row(host, trace.steps - 1);
const hostNumbers = () => trace.kinds.map((_, host) => host);
function never(name, host) {
  return trace.never && trace.never[name] ? trace.never[name][last(host)] : null;
}
function held(name, host, epoch) {  // a value that is written when it changes
  for (let e = epoch; e >= 0; e--) { const value = at(name, row(host, e)); if (value !== null) return value; }
  return null;
}
function plantings(host) {
  const found = [];
  for (let epoch = 0; epoch < trace.steps; epoch++) {
    const r = row(host, epoch);
    if (at("op", r) === "germinate" && !at("refused", r)) found.push({ host, epoch, slot: at("slot", r), blueprint: at("blueprint", r) });
  }
  return found;
}
function gain(host) {
  const other = never("return", host);
  return other === null ? null : at("return", last(host)) - other;
}

// ---- the table of hosts
const SORTS = {
  kind: (host) => trace.kinds[host], host: (host) => host, return: (host) => at("return", last(host)),
  gain: (host) => gain(host) ?? at("return", last(host)), first: (host) => (plantings(host)[0] || { epoch: Infinity }).epoch,
};
function grouped() { return new Set(trace.kinds).size <= Math.max(8, trace.kinds.length / 3); }
function ordered() {
  const key = SORTS[byId("sort").value];
  return hostNumbers().sort((a, b) => { const [x, y] = [key(a), key(b)]; return x < y ? -1 : x > y ? 1 : a - b; });
}
function drawHosts() {
  const head = byId("hosts").tHead, body = byId("hosts").tBodies[0];
  const end = ["online_accuracy", "test_accuracy"].find((name) => column(name) !== undefined);
  const other = trace.never ? "\n(never growing)" : "", unit = " [%]";
  const drawn = trace.slots.length > 0;  // a sandbox has none
  const titles = ["host", ...(drawn ? ["slots over host epochs 1 to " + trace.steps, `validation ${SCORE}`, "network kept"] : []),
    "return [points]" + other,
    ...(end ? [`${end.split("_")[0]} ${SCORE}${unit}${other}`] : [])];
  head.replaceChildren(make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title))));
  body.replaceChildren();
  let group = null;
  for (const host of ordered()) {
    if (byId("sort").value === "kind" && grouped() && trace.kinds[host] !== group) {
      group = trace.kinds[host];
      const count = trace.kinds.filter((kind) => kind === group).length;
      body.append(make("tr", { class: "group" }, make("th", { colspan: titles.length, scope: "rowgroup" }, `${/^kind\b/.test(group) ? "" : "kind "}${group} (${count})`)));
    }
    const button = make("button", { class: "host", type: "button", title: trace.kinds[host] }, `host ${host}`);
    button.addEventListener("click", () => choose(host));
    const cells = [button, ...(drawn ? [lanes(host), spark(host), network(host)] : []),
      `${level(at("return", last(host)))}${trace.never ? ` (${level(never("return", host))})` : ""}`,
      ...(end ? [`${level(at(end, last(host)))}${trace.never ? ` (${level(never(end, host))})` : ""}`] : [])];
    body.append(make("tr", { "data-host": host }, ...cells.map((cell, i) => make("td", /^(return|online|test)/.test(titles[i]) ? { "data-title": titles[i].replace("\n", " ") } : {}, cell))));
  }
  mark();
}
function lanes(host) {
  const left = Math.max(...trace.slots.map((name) => name.length)) * 5.2 + 6, height = trace.slots.length * (LANE + GAP);
  const room = narrow() ? document.querySelector("main").clientWidth - left - 12 : 420, wide = Math.max(narrow() ? 3 : 7, Math.min(20, room / trace.steps));
  const svg = make("svg", { class: "lanes", width: left + wide * trace.steps + 2, height, tabindex: 0, role: "img",
    "aria-label": `host ${host}, ${trace.kinds[host]}: ${story(host)}` });
  trace.slots.forEach((slot, rank) => {
    const y = rank * (LANE + GAP);
    svg.append(make("text", { x: 0, y: y + LANE - 2, class: "faint" }, slot));
    for (let epoch = 0; epoch < trace.steps; epoch++) {
      const r = row(host, epoch), stage = at(`${slot}.stage`, r), x = left + epoch * wide;
      svg.append(make("rect", { x, y, width: wide - 1, height: LANE, class: "cell" }));
      if (stage && stage !== "dormant") {
        const alpha = at(`${slot}.alpha`, r), tall = stage === "blending" ? Math.max(2, LANE * alpha) : LANE;
        svg.append(make("rect", { x, y: y + LANE - tall, width: wide - 1, height: tall, class: `s-${stage}` }));
        if (stage === "pruned") svg.append(make("text", { x: x + (wide - 1) / 2, y: y + LANE - 2, "text-anchor": "middle", class: "gone" }, "×"));
      }
      if (at("op", r) === "germinate" && at("slot", r) === slot && !at("refused", r))
        svg.append(make("text", { x: x + .5, y: y + LANE - 2.5, class: "plant" }, letters(at("blueprint", r))));
    }
  });
  for (let epoch = 0; epoch < trace.steps; epoch++) {
    const x = left + epoch * wide, r = row(host, epoch);
    if (at("events", r)) svg.append(make("line", { x1: x - .5, x2: x - .5, y1: 0, y2: height, class: "event" }));
    if (at("rolled_back", r)) svg.append(make("text", { x: x + wide / 2 - 2, y: LANE - 1, class: "rolled" }, "!"));
  }
  const cursor = make("rect", { class: "cursor", y: 0, height: height - GAP, width: wide - 1, visibility: "hidden" });
  svg.append(cursor);
  let epoch = -1;
  const show = (next, place) => {
    epoch = Math.max(0, Math.min(trace.steps - 1, next));
    cursor.setAttribute("x", left + epoch * wide); cursor.setAttribute("visibility", "visible");
    tip(host, epoch, place);
  };
  const hide = () => { cursor.setAttribute("visibility", "hidden"); byId("tip").style.display = "none"; };
  svg.addEventListener("pointermove", (event) => {
    const x = event.clientX - svg.getBoundingClientRect().left;
    show(Math.floor((x - left) / wide), [event.clientX, event.clientY]);
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("click", () => choose(host));
  svg.addEventListener("keydown", (event) => {
    const next = { ArrowRight: epoch + 1, ArrowLeft: epoch - 1, Home: 0, End: trace.steps - 1 }[event.key];
    if (event.key === "Enter") choose(host);
    if (event.key === "Escape") hide();
    if (next === undefined) return;
    event.preventDefault();
    const box = svg.getBoundingClientRect();
    show(next, [box.left + left + epoch * wide, box.bottom]);
  });
  return svg;
}
function story(host) {
  const planted = plantings(host).map((one) => `${one.blueprint} in ${one.slot} at epoch ${one.epoch + 1}`);
  return (planted.length ? "planted " + planted.join(", ") : "nothing planted") + `; return ${format(at("return", last(host)))}`;
}
function range() {  // of the scores of all hosts, which may be too many for arguments of Math.min
  trace.range ??= [...column("accuracy"), ...(trace.never ? trace.never.accuracy : [])]
    .reduce(([low, high], value) => value === null ? [low, high] : [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
  return trace.range;
}
function spark(host) {
  const values = column("accuracy");
  if (!values) return "";
  const own = values.slice(row(host, 0), last(host) + 1), other = trace.never ? trace.never.accuracy.slice(row(host, 0), last(host) + 1) : [];
  const [low, high] = range();
  const points = (list) => list.map((value, i) => value === null ? null : `${2 + 116 * i / Math.max(1, list.length - 1)},${28 - 26 * (value - low) / (high - low || 1)}`)
    .filter((point) => point !== null).join(" ");
  return make("svg", { width: 120, height: 30, role: "img", "aria-label": `${SCORE} from ${format(own[0])} to ${format(own[own.length - 1])}` },
    make("polyline", { class: "spark never", points: points(other) }), make("polyline", { class: "spark", points: points(own) }));
}
function network(host) {
  const wide = 22, svg = make("svg", { width: (trace.slots.length + 1) * wide + 14, height: 20, role: "img" }), names = [];
  svg.append(make("line", { x1: 8, x2: trace.slots.length * wide + 14, y1: 10, y2: 10, class: "axis" }), make("rect", { x: 2, y: 4, width: 8, height: 12, class: "s-embargoed" }));
  trace.slots.forEach((slot, rank) => {
    const x = (rank + .75) * wide + 4, blueprint = trace.kept[slot][host];
    if (blueprint) {
      names.push(`${blueprint} in ${slot}`);
      svg.append(make("circle", { cx: x, cy: 10, r: 8, class: "s-fossilized" }), make("text", { x: x - 6, y: 13, class: "plant", style: "font-size:8px;fill:#111" }, letters(blueprint)));
    } else svg.append(make("circle", { cx: x, cy: 10, r: 3, class: "cell", style: "fill:var(--cell);stroke:var(--line)" }));
  });
  svg.append(make("rect", { x: trace.slots.length * wide + 12, y: 4, width: 8, height: 12, class: "s-embargoed" }));
  svg.setAttribute("aria-label", names.length ? "kept " + names.join(", ") : "kept nothing");
  return svg;
}

// ---- one step
function facts(host, epoch) {
  const r = row(host, epoch), op = at("op", r), list = [];
  const what = op === "wait" ? "wait" : [op, at("blueprint", r), at("slot", r) ? "in " + at("slot", r) : ""].filter(Boolean).join(" ");
  list.push(["operation", what + (at("refused", r) ? " (refused)" : "")]);
  if (at("probability", r) !== null) list.push(["probability", format(at("probability", r), 2)]);
  if (at("value", r) !== null) list.push(["value", format(at("value", r)) + " points to come"]);
  list.push(["reward", format(at("reward", r)) + " points"]);
  for (const name of Object.keys(trace.columns)) if (name.startsWith("reward_") && at(name, r)) list.push(["  " + name.slice(7).replaceAll("_", " "), format(at(name, r))]);
  if (column("accuracy")) list.push([SCORE, `${format(at("accuracy_before", r))} → ${format(at("accuracy", r))}`]);
  for (const slot of trace.slots) {
    const stage = at(`${slot}.stage`, r);
    if (stage && stage !== "dormant") {
      const parts = [at(`${slot}.blueprint`, r), stage, at(`${slot}.alpha`, r) === null ? "" : `alpha ${format(at(`${slot}.alpha`, r), 2)}`];
      if (at(`${slot}.contribution`, r) !== null) {
        const error = at(`${slot}.contribution_error`, r);  // half of the 95 % interval, as elsewhere on the page
        parts.push(`contributes ${format(at(`${slot}.contribution`, r))}${error === null ? "" : ` ± ${format(1.96 * error, 2)}`} pp`);
      }
      list.push([slot, parts.filter(Boolean).join(", ")]);
    }
    const potential = Object.keys(trace.columns).filter((name) => name.startsWith(`${slot}.potential_`))
      .map((name) => [name.slice(slot.length + 11), held(name, host, epoch)]).filter(([, value]) => value !== null).sort((a, b) => b[1] - a[1])[0];
    if (potential) list.push([`${slot} potential`, `best ${potential[0]}, ${format(potential[1], 2)}`]);
  }
  if (at("events", r)) list.push(["event", at("events", r)]);
  if (at("rolled_back", r)) list.push(["rolled back", at("rolled_back", r)]);
  return list;
}
function tip(host, epoch, [x, y]) {
  const list = facts(host, epoch), box = byId("tip");
  box.replaceChildren(make("b", {}, `host ${host}, epoch ${epoch + 1}`), make("table", {}, ...list.map(([name, text]) => make("tr", {}, make("td", {}, name), make("td", {}, text)))));
  box.style.display = "block";
  box.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.offsetWidth - 8)) + "px";
  box.style.top = (y + 16 + box.offsetHeight > innerHeight ? Math.max(4, y - box.offsetHeight - 10) : y + 16) + "px";
  byId("live").textContent = `host ${host}, epoch ${epoch + 1}: ` + list.map((pair) => pair.join(" ")).join("; ");
}

// ---- decisions, potential, counterfactuals
function drawHeat() {
  const cells = new Map(), sizes = new Map();
  const kindOf = (host) => grouped() ? trace.kinds[host] : "all";
  for (const host of hostNumbers()) {
    sizes.set(kindOf(host), (sizes.get(kindOf(host)) || 0) + 1);
    for (const one of plantings(host)) {
      const key = `${kindOf(host)}\t${one.blueprint} in ${one.slot}`;
      if (!cells.has(key)) cells.set(key, new Array(trace.steps).fill(0));
      cells.get(key)[one.epoch] += 1;
    }
  }
  if (!cells.size) { byId("heat").replaceChildren(make("p", {}, "Nothing is planted in this episode.")); return; }
  const total = (key) => cells.get(key).reduce((a, b) => a + b, 0);
  const keys = [...cells.keys()].sort((a, b) => total(b) - total(a)).slice(0, MOST_CHOICES)
    .sort((a, b) => a.split("\t")[0] < b.split("\t")[0] ? -1 : a.split("\t")[0] > b.split("\t")[0] ? 1 : total(b) - total(a));
  const above = narrow(), left = above ? 0 : 8 + 6 * Math.max(...keys.map((key) => key.length + 3)), tall = above ? 31 : 17;
  const room = above ? document.querySelector("main").clientWidth - 6 : 640, wide = Math.max(above ? 3 : 22, Math.min(34, room / trace.steps));
  const svg = make("svg", { width: left + wide * trace.steps + 4, height: 20 + tall * keys.length, role: "img", "aria-label": "shares of hosts by kind, choice and epoch" });
  for (let epoch = 0; epoch < trace.steps; epoch += trace.steps > 12 ? 5 : 1) svg.append(make("text", { x: left + epoch * wide + 6, y: 11, class: "faint" }, epoch + 1));
  keys.forEach((key, rank) => {
    const [kind, choice] = key.split("\t"), y = 17 + rank * tall + (above ? 14 : 0);
    svg.append(make("text", { x: 0, y: above ? y - 3 : y + 11 }, `${kind}: ${choice}`));
    cells.get(key).forEach((count, epoch) => {
      const share = count / sizes.get(kind);
      svg.append(make("rect", { x: left + epoch * wide, y, width: wide - 1, height: 16, style: `fill:color-mix(in srgb, var(--mark) ${Math.round(100 * share)}%, var(--cell))` }));
      const text = Math.round(100 * share) + (wide < 28 ? "" : "%");
      if (count && wide > 9) svg.append(make("text", { x: left + (epoch + .5) * wide - .5, y: y + 11.5, "text-anchor": "middle", style: (share > .5 ? "fill:var(--back);" : "") + (wide < 18 ? "font-size:7px" : "") }, text));
    });
  });
  const rest = cells.size > MOST_CHOICES ? [make("p", { class: "quiet" }, `The ${MOST_CHOICES} most frequent of ${cells.size} choices.`)] : [];
  byId("heat").replaceChildren(svg, ...rest);
}
function lastContribution(one) {
  let value = null;
  for (let epoch = one.epoch; epoch < trace.steps; epoch++) {
    const r = row(one.host, epoch);
    if (epoch > one.epoch && at("op", r) === "germinate" && at("slot", r) === one.slot && !at("refused", r)) break;
    value = at(`${one.slot}.contribution`, r) ?? value;
  }
  return value;
}
function ranks(values) {
  const order = values.map((_, i) => i).sort((a, b) => values[a] - values[b]), out = new Array(values.length);
  for (let i = 0; i < order.length;) {
    let j = i;
    while (j < order.length && values[order[j]] === values[order[i]]) j++;
    for (let k = i; k < j; k++) out[order[k]] = (i + j - 1) / 2;
    i = j;
  }
  return out;
}
function correlation(xs, ys) {
  const [a, b] = [ranks(xs), ranks(ys)], mean = (v) => v.reduce((s, x) => s + x, 0) / v.length, [ma, mb] = [mean(a), mean(b)];
  const sum = (f) => a.reduce((s, _, i) => s + f(a[i] - ma, b[i] - mb), 0);
  return sum((x, y) => x * y) / Math.sqrt(sum((x) => x * x) * sum((_, y) => y * y));
}
function wasPruned(one) {
  for (let epoch = one.epoch; epoch < trace.steps; epoch++) {
    const r = row(one.host, epoch);
    if (epoch > one.epoch && at("op", r) === "germinate" && at("slot", r) === one.slot && !at("refused", r)) return false;
    if (at(`${one.slot}.stage`, r) === "pruned") return true;
  }
  return false;
}
function steps(low, high) {  // round values at even distances, about five, from the one below to the one above
  const raw = (high - low) / 5 || 1, power = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].find((one) => one * power >= raw) * power, found = [];
  for (let i = Math.floor(low / step + 1e-9); (i - 1) * step < high - 1e-9 * step; i++) found.push(i * step);
  return found;
}
function decades(low, high) {  // exponents of powers of ten, at most six
  const every = Math.max(1, Math.ceil((high - low) / 6)), found = [];
  for (let power = low; power <= high; power += every) found.push(power);
  return found;
}
function drawScatter() {
  const all = hostNumbers().flatMap(plantings).map((one) => ({ ...one, x: held(`${one.slot}.potential_${one.blueprint}`, one.host, one.epoch), y: lastContribution(one) }));
  const dots = all.filter((one) => one.x > 0 && one.y !== null), without = (name, count) => count ? `; ${count} of ${all.length} missing: ${name}` : "";
  const missing = without("no contribution was measured", all.filter((one) => one.y === null).length)
    + without("potential 0 or not measured", all.filter((one) => one.y !== null && !(one.x > 0)).length);
  if (dots.length < 2) { byId("scatter").replaceChildren(make("p", { class: "quiet" }, "Fewer than two seeds have both numbers in this episode.")); return; }
  const xs = dots.map((one) => Math.log10(one.x)), ys = dots.map((one) => one.y), names = [...new Set(dots.map((one) => one.blueprint))].sort();
  const x0 = Math.floor(Math.min(...xs)), x1 = Math.max(x0 + 1, Math.ceil(Math.max(...xs))), rows = steps(Math.min(0, ...ys), Math.max(...ys, 1));
  const y0 = Math.min(rows[0], ...ys), y1 = Math.max(rows.at(-1), ...ys), X = (x) => 44 + 322 * (x - x0) / (x1 - x0), Y = (y) => 200 - 180 * (y - y0) / (y1 - y0 || 1);
  const svg = make("svg", { class: "scatter", viewBox: "0 0 380 248", width: "100%", role: "img", "aria-label": "growth potential against contribution" });
  for (const y of rows) svg.append(make("line", { x1: 40, x2: 370, y1: Y(y), y2: Y(y), class: "axis" }), make("text", { x: 36, y: Y(y) + 4, "text-anchor": "end", class: "faint" }, format(y, 3)));
  for (const x of decades(x0, x1)) svg.append(make("line", { x1: X(x), x2: X(x), y1: 200, y2: 205, class: "tick" }),
    make("text", { x: X(x), y: 218, "text-anchor": "middle", class: "faint" }, Math.abs(x) > 3 ? `1e${x}` : format(10 ** x, 1)));
  svg.append(make("text", { x: 205, y: 238, "text-anchor": "middle", class: "faint" }, `growth potential at planting [${SCORE === "accuracy" ? "nats" : "loss"} per unit of learning rate]`),
    make("text", { x: 2, y: 10, class: "faint" }, "contribution [pp]"));
  dots.forEach((one, i) => {
    const shade = SHADES[names.indexOf(one.blueprint) % SHADES.length], [x, y] = [X(xs[i]), Y(ys[i])];
    svg.append(wasPruned(one) ? make("g", { class: "removed", stroke: shade }, make("line", { x1: x - 4, x2: x + 4, y1: y - 4, y2: y + 4 }), make("line", { x1: x - 4, x2: x + 4, y1: y + 4, y2: y - 4 }))
      : make("circle", { cx: x, cy: y, r: 4, class: "dot", fill: shade }));
  });
  const key = make("ul", { class: "legend" }, ...names.map((name, i) => make("li", {}, make("i", { style: `background:${SHADES[i % SHADES.length]}` }), name)),
    ...(dots.some(wasPruned) ? [make("li", {}, "× pruned")] : []));
  byId("scatter").replaceChildren(svg, key, make("p", { class: "quiet" }, `${dots.length} seeds${missing}. ${relation(dots)}`));
}
function relation(dots) {  // over seeds that were planted in the same epoch, since potential changes with the state of the host
  if (dots.length < 4) return "These are too few for a rank correlation.";
  const counts = new Map();
  for (const one of dots) counts.set(one.epoch, (counts.get(one.epoch) || 0) + 1);
  const [epoch] = [...counts].sort((a, b) => b[1] - a[1])[0], same = dots.filter((one) => one.epoch === epoch);
  const [rho, some] = [dots, same].map((list) => correlation(list.map((one) => one.x), list.map((one) => one.y)));
  if (!Number.isFinite(rho)) return "Their rank correlation is undefined.";
  const chance = (value, count) => Math.abs(value) < 1.96 / Math.sqrt(count - 1) ? "within chance" : "more than chance";
  const within = same.length < dots.length && same.length > 3 && Number.isFinite(some)
    ? `; of the ${same.length} planted in epoch ${epoch + 1}: ${some.toFixed(2)} (${chance(some, same.length)})` : "";
  return `Rank correlation ${rho.toFixed(2)} (${chance(rho, dots.length)})${within}. Hosts of different kinds differ in both numbers, and only chosen seeds are shown: `
    + "a correlation near 0 or below does not say that potential fails to rank the choices within a host.";
}
function drawCounterfactuals() {
  byId("which").textContent = `host ${chosen}`;
  const end = last(chosen), full = at("accuracy", end), bars = [];
  if (full === null) { byId("counterfactuals").replaceChildren(make("p", { class: "quiet" }, `The validation ${SCORE} of this host is unknown.`)); return; }
  if (trace.never) bars.push(["the same host, never growing", trace.never.accuracy[end], null, true]);
  for (const slot of trace.slots) {
    const contribution = at(`${slot}.contribution`, end);
    if (contribution !== null) bars.push([`without ${at(`${slot}.blueprint`, end)} in ${slot}`, full - contribution, at(`${slot}.contribution_error`, end), true]);
  }
  bars.push(["as it is, with all seeds", full, null, false]);
  if (at("committed_accuracy", end) !== null) bars.push(["with what was kept only", at("committed_accuracy", end), null, false]);
  const low = Math.min(0, ...bars.map((bar) => bar[1])), high = Math.max(100, ...bars.map((bar) => bar[1]));
  const left = Math.max(190, 6.4 * Math.max(...bars.map(([name]) => name.length)) + 8), X = (value) => left + 150 * (value - low) / (high - low);
  const svg = make("svg", { viewBox: `0 0 ${left + 250} ${22 * bars.length + 6}`, width: "100%", role: "img", "aria-label": bars.map(([name, value]) => `${name} ${format(value)}`).join("; ") });
  bars.forEach(([name, value, error, grey], i) => {
    const y = 4 + 22 * i;
    svg.append(make("text", { x: 0, y: y + 12 }, name), make("rect", { x: X(Math.min(0, value)), y, width: Math.abs(X(value) - X(0)), height: 15, class: grey ? "bar grey" : "bar" }));
    if (error) svg.append(make("line", { x1: X(value - 1.96 * error), x2: X(value + 1.96 * error), y1: y + 7.5, y2: y + 7.5, class: "whisker" }));
    svg.append(make("text", { x: left + 160, y: y + 12 }, format(value) + (grey ? ` (${value - full > 0 ? "+" : ""}${format(value - full, 2)})` : "")));
  });
  byId("counterfactuals").replaceChildren(svg);
}

// ---- choices
function mark() {
  for (const tr of byId("hosts").tBodies[0].rows) tr.classList.toggle("chosen", Number(tr.dataset.host) === chosen && tr.dataset.host !== undefined);
}
function ticks() { return [...document.querySelectorAll(".ticks button")]; }
function choose(host) { chosen = host; mark(); if (trace.slots.length) drawCounterfactuals(); }
function draw() {
  trace = traces[Number(byId("trace").value)];
  byId("label").textContent = trace.label;
  byId("trace").setAttribute("aria-valuetext", trace.label);
  ticks().forEach((tick, i) => tick.classList.toggle("now", i === Number(byId("trace").value)));
  const names = [...new Set(hostNumbers().flatMap(plantings).map((one) => one.blueprint))].sort();
  byId("short").textContent = names.length && trace.slots.length ? "Letters: " + names.map((name) => `${letters(name)} ${name}`).join(", ") + "." : "";
  if (chosen >= trace.kinds.length) chosen = 0;
  drawHosts(); drawHeat();
  if (trace.slots.length) { drawScatter(); drawCounterfactuals(); }  // a sandbox has none
}
async function start() {
  if (!byId("trace")) return;
  traces = await unpack(byId("data").textContent);
  byId("trace").value = traces.length - 1;
  const seen = new Set(traces.flatMap((one) => one.slots.flatMap((slot) => one.columns[`${slot}.stage`]?.names ?? [])));
  byId("legend").append(...STAGES.filter((stage) => seen.has(stage)).map((stage) => make("li", {}, make("i", { class: `s-${stage}`, style: `background:var(--${stage})` }), stage)));
  byId("trace").addEventListener("input", draw);
  ticks().forEach((tick, i) => tick.addEventListener("click", () => { byId("trace").value = i; draw(); }));
  byId("sort").addEventListener("change", drawHosts);
  let width = innerWidth;  // a phone's address bar changes the height alone
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
  draw();
}
start().catch((error) => { byId("label").textContent = "This browser cannot unpack the data of this page: " + error; });
