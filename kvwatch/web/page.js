// The live page. It asks the daemon for its snapshot every few seconds and updates the document in place.
// Names, models and details come from other programs: they reach the document as text nodes and attribute
// values only. null is unknown and is shown as that word, with the reason.

const REFRESH_MS = 2000;
const PATIENCE_MS = 8000;
const STALE_POLLS = 3;
const POLLS_REMEMBERED = 10;
const STALE_SECONDS_BEFORE_INTERVAL_IS_KNOWN = 60;
const MIB = 2 ** 20;

// ---------------------------------------------------------------- elements, updated in place

/** Describe an element. `key` tells siblings apart; `grow` is the flex share of a bar's part. */
function h(tag, attributes, ...children) {
  return { tag, attributes: attributes ?? {}, children: children.flat(Infinity) };
}

/** Make `parent` hold what `children` describe, touching only what differs: focus and open <details> stay. */
function patch(parent, children) {
  const wanted = children.flat(Infinity).map((child, index) => [child, keyOf(child, index)]);
  const keys = new Set(wanted.filter(([child]) => isShown(child)).map(([, key]) => key));
  const present = new Map();
  for (const node of [...parent.childNodes]) {
    if (keys.has(node.patchKey)) present.set(node.patchKey, node);
    else node.remove();
  }
  let next = parent.firstChild;
  for (const [child, key] of wanted) {
    if (!isShown(child)) continue;
    const node = present.get(key) ?? create(child, key);
    if (typeof child === "object") update(node, child);
    else if (node.data !== String(child)) node.data = String(child);
    if (node === next) next = next.nextSibling;
    else parent.insertBefore(node, next);
  }
}

function isShown(child) {
  return child !== null && child !== undefined && child !== false;
}

function keyOf(child, index) {
  return child?.attributes?.key ?? `${index} ${child?.tag ?? ""}`;
}

function create(child, key) {
  const node = typeof child === "object" ? document.createElement(child.tag) : document.createTextNode("");
  node.patchKey = key;
  return node;
}

function update(node, { attributes, children }) {
  const { key, grow, ...plain } = attributes;
  for (const name of node.getAttributeNames()) {
    if (!(name in plain) && name !== "open" && name !== "style") node.removeAttribute(name);
  }
  for (const [name, value] of Object.entries(plain)) {
    if (!isShown(value)) node.removeAttribute(name);
    else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
  }
  if (grow !== undefined) node.style.flexGrow = String(grow);
  patch(node, children);
}

/**
 * A table that narrow screens show as blocks; the roles keep it a table for screen readers.
 * The first column names the rows unless it is a number.
 */
function table({ caption, className, columns, rows }) {
  const head = columns.map(({ label, title, number }) =>
    h("th", { scope: "col", role: "columnheader", title, class: number && "number", "data-of": label }, label));
  const body = rows.map(({ key, cells }) =>
    h("tr", { key, role: "row" }, cells.map((cell, index) => {
      const names = index === 0 && !columns[0].number;
      return h(names ? "th" : "td", {
        key: index,
        scope: names ? "row" : null,
        role: names ? "rowheader" : "cell",
        class: columns[index].number && "number",
        "data-label": columns[index].label,
      }, cell);
    })));
  return h("table", { role: "table", class: className },
    h("caption", {}, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)),
    h("tbody", { role: "rowgroup" }, body));
}

// ---------------------------------------------------------------- figures and words

const wholeFormat = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const shortFormat = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

function isKnown(value) {
  return value !== null && value !== undefined;
}

function signed(text) {
  return text.replace("-", "\u2212");
}

function whole(value) {
  return signed(wholeFormat.format(value));
}

/** Round down, so that a pool which is not quite full does not read 100 %. */
function percent(ratio) {
  if (ratio === 0 || ratio === 1) return `${100 * ratio}\u00a0%`;
  const tenths = Math.floor(ratio * 1000 + 1e-6);
  return tenths === 0 ? "< 0.1\u00a0%" : `${(tenths / 10).toFixed(1)}\u00a0%`;
}

function mib(bytes) {
  return bytes > 0 && bytes < MIB ? "< 1\u00a0MiB" : `${whole(bytes / MIB)}\u00a0MiB`;
}

function span(seconds) {
  const rounded = Math.round(seconds);
  if (rounded < 120) return `${rounded}\u00a0s`;
  const minutes = Math.floor(rounded / 60);
  if (minutes < 120) return `${minutes}\u00a0min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours}\u00a0h ${minutes % 60}\u00a0min` : `${Math.floor(hours / 24)}\u00a0days`;
}

function pace(seconds) {
  return seconds < 0.95 ? `${seconds.toFixed(1)}\u00a0s` : span(seconds);
}

/** Local time of day, with the date where it is not today's. */
function clock(unixSeconds) {
  const at = new Date(unixSeconds * 1000);
  const today = at.toDateString() === new Date().toDateString();
  const date = today ? "" : `${at.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} `;
  return date + at.toLocaleTimeString("en-GB");
}

function moment(unixSeconds, now) {
  return `${clock(unixSeconds)}, ${span(Math.max(0, now - unixSeconds))} ago`;
}

function count(number, one, many) {
  return `${whole(number)} ${number === 1 ? one : many}`;
}

function unknown(reason) {
  return h("span", { class: "unknown", title: reason }, "unknown");
}

function figure(value, reason, format = whole) {
  return isKnown(value) ? format(value) : unknown(reason);
}

/** A figure, or the word with its reason written out. */
function explained(value, reason, format = whole) {
  return isKnown(value) ? format(value) : [unknown(reason), ", ", foreign(reason)];
}

/** A string of another program: isolated, so that its direction marks do not reorder the line. */
function foreign(text, attributes) {
  return h("bdi", { class: "foreign", ...attributes }, text);
}

const ENGINES = { vllm: "vLLM", llamacpp: "llama.cpp" };

const BOUNDS = {
  queue: "requests already wait for capacity",
  slots: "the request slots are taken",
  memory: "the pool has no room",
};

const BOUND_BY = {
  queue: "Bound by the queue.",
  slots: "Bound by request slots, not by memory.",
  memory: "Bound by the pool\u2019s memory.",
};

const PARTS = {
  kv_cache: ["KV cache", "The pool that the server reserved, used or not."],
  weights: ["weights", "The model."],
  working: ["working memory", "Activations, CUDA graphs and context."],
  weights_and_working: ["weights and working memory", "What the server\u2019s processes hold beside the KV cache."],
  undivided: ["all of the server", "The server\u2019s processes; its KV cache in bytes is not known."],
  other: ["other processes", "Processes of no watched server."],
  orphan: ["orphan", "A process whose server is gone."],
  unattributed: ["unattributed", "In use, but held by no process that the driver lists."],
  reserved: ["reserved", "Held back by the driver."],
  free: ["free", "Can be allocated."],
  unknown: ["unknown", "What is left of the total when all known parts are taken away."],
};

const MATCHES = {
  configured: "configured PID",
  port: "listening port",
  tree: "process tree",
  cgroup: "cgroup",
  none: "no server",
};

// ---------------------------------------------------------------- what a server's state is

function sourceOf(snapshot, source, target) {
  return snapshot.sources.find((state) => state.source === source && state.target === target);
}

function because(state) {
  if (!state?.reason) return null;
  return state.detail ? `${state.reason}: ${state.detail}` : state.reason;
}

function sum(values) {
  return values.every(isKnown) ? values.reduce((total, value) => total + value, 0) : null;
}

/** Why a server's fits are not known, in words that say what to do where something can be done. */
function whyFitsUnknown(server, snapshot) {
  const engine = because(sourceOf(snapshot, "engine", server.target.name));
  if (engine) return engine;
  if (server.reading?.sleeping) return "sleeping: the server has given its pool back, nothing fits until it wakes";
  if (server.ranks.some((rank) => !rank.full)) {
    const model = sourceOf(snapshot, "model", server.target.name);
    return because(model) ?? "unknown_pool: the server does not state its pool";
  }
  return whyPageIsSilent(server);
}

function whyPageIsSilent(server) {
  const missing = server.reading?.missing ?? [];
  return missing.length ? `the server\u2019s page lacks ${missing.join(", ")}` : "the server\u2019s page does not say";
}

/** Return {kind, bounds}; kind: silent, asleep, full, open or unknown. */
function verdict(server) {
  if (!server.reading) return { kind: "silent", bounds: [] };
  if (server.reading.sleeping) return { kind: "asleep", bounds: [] };
  const fits = server.ranks.map((rank) => rank.full?.guaranteed);
  const guaranteed = fits.length ? sum(fits) : null;
  if (guaranteed === null) return { kind: "unknown", bounds: [] };
  const bounds = [...new Set(server.ranks.map((rank) => rank.full.bound_by).filter(isKnown))];
  return { kind: guaranteed === 0 ? "full" : "open", guaranteed, bounds };
}

function badge({ kind, guaranteed }) {
  return {
    silent: "no answer",
    asleep: "asleep",
    full: "cannot take one more",
    unknown: "not known",
    open: `takes ${whole(guaranteed ?? 0)} more`,
  }[kind];
}

// ---------------------------------------------------------------- the line of state

/** Join names as "a", "a and b" or "a, b and c", each isolated. */
function names(servers) {
  return servers.map((server, index) => [
    index === 0 ? "" : index === servers.length - 1 ? " and " : ", ",
    foreign(server.target.name),
  ]);
}

/** The sentences of the state line; no counts that change at every poll, since it is read aloud. */
function stateOf(snapshot) {
  const { servers } = snapshot;
  if (!servers.length) return { kind: "unknown", words: ["No server is configured."] };
  const judged = servers.map((server) => ({ server, ...verdict(server) }));
  const of = (kind) => judged.filter((one) => one.kind === kind);
  const silent = of("silent").map(({ server }) => server);
  const answer = servers.length - silent.length;
  const words = [
    silent.length
      ? `${answer} of ${count(servers.length, "server answers", "servers answer")}.`
      : ["The server answers.", "Both servers answer."][servers.length - 1] ?? `All ${servers.length} servers answer.`,
  ];
  const groups = new Map();
  for (const { server, bounds } of of("full")) {
    const why = bounds.map((bound) => BOUNDS[bound]).join(", ");
    groups.set(why, [...(groups.get(why) ?? []), server]);
  }
  for (const [why, group] of groups) {
    words.push(" ", h("strong", {}, names(group), " cannot take one more full-length request"), why && `: ${why}`, ".");
  }
  if (silent.length) {
    words.push(" ", h("strong", {}, names(silent), silent.length === 1 ? " does" : " do", " not answer"), ".");
  }
  const asleep = of("asleep").map(({ server }) => server);
  if (asleep.length) words.push(" ", names(asleep), asleep.length === 1 ? " sleeps." : " sleep.");
  const unclear = of("unknown").map(({ server }) => server);
  if (unclear.length) words.push(" What ", names(unclear), " can take is unknown.");
  const open = of("open").length;
  if (open === servers.length) words.push(open === 1 ? " It" : " Each", " can take one more full-length request.");
  const kind = groups.size || silent.length ? "bad" : unclear.length || asleep.length ? "unknown" : "good";
  return { kind, words, troubled: servers.length - open };
}

// ---------------------------------------------------------------- servers

function serverCard(server, snapshot) {
  const { target, reading } = server;
  const state = verdict(server);
  const engine = reading?.engine ?? target.engine;
  const heading = `server ${target.name}`;
  return h("article", { key: target.name, class: "card", "data-kind": state.kind, "aria-label": heading },
    h("div", { class: "heading" },
      h("h3", {}, foreign(target.name)),
      h("span", { class: "badge" }, badge(state))),
    h("p", { class: "meta" },
      isKnown(engine) ? ENGINES[engine] ?? foreign(engine) : ["engine ", unknown("not recognised")],
      " ", reading ? (isKnown(reading.version) ? foreign(reading.version) : ["version ", unknown(whyPageIsSilent(server))]) : null,
      reading && [" \u00b7 ", isKnown(reading.model)
        ? foreign(reading.model, { title: reading.model }) : ["model ", unknown(whyPageIsSilent(server))]],
      reading && [" \u00b7 full length ", figure(server.full_length_tokens, whyPageIsSilent(server)), " tokens"],
      !reading && [" at ", foreign(target.url)]),
    reading ? serverBody(server, state, snapshot) : [
      h("p", { class: "note" }, "Everything about this server is unknown: ",
        foreign(because(sourceOf(snapshot, "engine", target.name)) ?? "no reason was given"), "."),
      debugLink(target.name),
    ]);
}

function debugLink(name) {
  return h("p", { class: "links" },
    h("a", { href: debugUrl(name) }, "What was fetched and how it was read", h("span", { class: "spoken" }, `: ${name}`)));
}

function debugUrl(name) {
  return `debug/target?server=${encodeURIComponent(name)}`;
}

function serverBody(server, state, snapshot) {
  return [
    h("div", { class: "pools" }, server.ranks.map((rank) => pool(rank, server))),
    fitTable(server, snapshot),
    h("p", { class: "verdict" }, verdictWords(server, state, snapshot)),
    h("ul", { class: "notes" }, notes(server, snapshot).map((note, index) => h("li", { key: index }, note))),
    h("details", { key: "more" }, h("summary", {}, "More about ", foreign(server.target.name)),
      facts(server, snapshot), debugLink(server.target.name)),
  ];
}

function pool(rank, server) {
  const ratio = rank.usage_ratio;
  const known = isKnown(ratio);
  const why = whyUsageUnknown(rank, server);
  const slots = rank.reading.slots;
  const blocks = isKnown(rank.usable_blocks) && isKnown(rank.free_blocks)
    && `${whole(rank.usable_blocks - rank.free_blocks)} of ${whole(rank.usable_blocks)} blocks, ${whole(rank.free_blocks)} free`;
  const cells = slots && isKnown(rank.capacity_tokens) && isKnown(rank.free_tokens)
    && `${whole(rank.capacity_tokens - rank.free_tokens)} of ${whole(rank.capacity_tokens)} tokens, ${whole(rank.free_tokens)} free`;
  const busy = slots && [figure(slots.busy_slots, whyPageIsSilent(server)), ` of ${whole(slots.total_slots)} slots busy`];
  const title = server.ranks.length > 1 ? `Rank ${rank.reading.rank}: ` : "Pool: ";
  return h("div", { key: rank.reading.rank, class: "pool" },
    h("p", {},
      h("span", {}, title, known ? [h("b", {}, percent(ratio)), " used"] : ["use ", unknown(why), h("span", { class: "aside" }, ", ", foreign(why))]),
      h("span", { class: "aside" }, [blocks, cells, busy].filter(Boolean).map((part, index) => [index ? " \u00b7 " : "", part]),
        isKnown(rank.capacity_bytes) && ` \u00b7 ${mib(rank.capacity_bytes)}`)),
    h("div", { class: known ? "bar" : "bar blind", "aria-hidden": "true" },
      h("span", { class: "used", grow: known ? ratio : 0 }), h("span", { class: "rest", grow: known ? 1 - ratio : 1 })));
}

function whyUsageUnknown(rank, server) {
  if (server.reading.sleeping) return "sleeping: the server has given its pool back";
  if (!rank.reading.slots) return whyPageIsSilent(server);
  return isKnown(server.target.pool_tokens)
    ? "not_found: /slots was not read, so what the busy slots hold is not known"
    : "unknown_pool: no page states the pool; set pool_tokens";
}

const FITS = [
  ["Guaranteed", "Can be added now and still be held when all have grown to full length", "guaranteed"],
  ["Fits now", "What the free part takes if the running requests do not grow", "now"],
  ["Fits empty", "What the empty pool admits at once", "empty"],
  ["Resident limit", "This many can be held at full length together", "resident_limit"],
  ["Headroom", "Resident limit minus running and waiting; negative: not all can grow to full length", "headroom"],
];

function fitTable(server, snapshot) {
  const why = whyFitsUnknown(server, snapshot);
  const silence = whyPageIsSilent(server);
  const several = server.ranks.length > 1;
  const llama = server.ranks.some((rank) => rank.reading.slots);
  const figures = server.ranks.map((rank) => ({
    name: `rank ${rank.reading.rank}`,
    values: [...FITS.map(([, , field]) => rank.full?.[field]), rank.load.running, rank.load.waiting, rank.reading.preemptions_total],
  }));
  if (several) {
    figures.push({ name: "server", values: figures[0].values.map((_, index) => sum(figures.map((row) => row.values[index]))) });
  }
  const last = FITS.length + 2;
  return table({
    caption: ["Full-length requests of ", foreign(server.target.name)],
    className: several ? "fits several" : "fits",
    columns: [
      ...(several ? [{ label: "Rank" }] : []),
      ...FITS.map(([label, title]) => ({ label, title, number: true })),
      { label: "Running", number: true },
      { label: "Waiting", number: true },
      { label: "Preemptions", number: true, title: "Requests that lost their place in a full pool and were computed again" },
    ],
    rows: figures.map(({ name, values }) => ({
      key: name,
      cells: [...(several ? [name] : []), ...values.map((value, index) =>
        index === last && llama && !isKnown(value)
          ? h("span", { class: "none", title: "llama.cpp does not preempt" }, "n/a")
          : figure(value, index < FITS.length ? why : silence))],
    })),
  });
}

function verdictWords(server, { kind, bounds }, snapshot) {
  if (kind === "asleep") return "It sleeps: nothing fits until it wakes.";
  if (kind === "unknown") return ["What it can take is unknown: ", foreign(whyFitsUnknown(server, snapshot)), "."];
  const words = bounds.length < 2 ? bounds.map((bound) => BOUND_BY[bound])
    : server.ranks.map((rank, index) => [
      index ? " " : "", `Rank ${rank.reading.rank}: ${BOUND_BY[rank.full.bound_by] ?? "bound by nothing known."}`]);
  return [words, waitingWords(server)];
}

function notes(server, snapshot) {
  const { ranks, target } = server;
  const list = ranks.map((rank) => typicalNote(rank, server, snapshot));
  if (ranks.some((rank) => rank.basis === "admission")) {
    list.push([h("b", {}, "Lower bounds. "), "Only the engine\u2019s start-up charge of a full-length request is known, not what one holds while it runs."]);
  }
  const suspected = snapshot.recompute_suspected.filter((entry) => entry.server === target.name && entry.requests > 0);
  if (suspected.length) {
    const requests = suspected.reduce((total, entry) => total + entry.requests, 0);
    list.push(`Work probably redone: ${count(requests, "request", "requests")} stopped running without finishing since kvwatch started.`);
  }
  if (ranks.some((rank) => rank.reading.slots)) {
    list.push("llama.cpp does not preempt: in a full pool the running requests fail with HTTP 500.");
  }
  if (server.config_changed_at) list.push(`Settings changed ${moment(server.config_changed_at, snapshot.taken_at)}.`);
  return list;
}

// A Map: the reason is a label of the engine's page and may be any string.
const WAITING = new Map([
  ["capacity", "for capacity"],
  ["deferred", "deferred"],
  ["unspecified", "for a reason that the engine does not say"],
]);

/** For what requests wait, in the line that is always there: nothing below it moves when a queue comes and goes. */
function waitingWords({ ranks }) {
  const totals = new Map();
  for (const [reason, number] of ranks.flatMap((rank) => Object.entries(rank.reading.waiting))) {
    totals.set(reason, (totals.get(reason) ?? 0) + number);
  }
  const waiting = [...totals].filter(([, number]) => number > 0);
  return waiting.length > 0 && [" Waiting: ", waiting.map(([reason, number], index) => [
    index ? ", " : "", `${whole(number)} `, WAITING.get(reason) ?? foreign(reason)]), "."];
}

function typicalNote(rank, server, snapshot) {
  const head = h("b", {}, "Typical request", server.ranks.length > 1 && ` of rank ${rank.reading.rank}`, ": ");
  const period = span(snapshot.typical_window_seconds);
  if (!rank.typical) {
    const longest = rank.reading.slots?.longest_tokens;
    if (rank.reading.slots) {
      return [head, unknown("llama.cpp does not count finished requests"), ", llama.cpp does not count finished requests.",
        longest ? ` The longest so far held ${count(longest, "token", "tokens")}.` : ""];
    }
    const counted = isKnown(rank.reading.finished_prompt_tokens);
    const why = counted ? `none was seen to finish in the last ${period}` : "the page does not count finished requests";
    return [head, unknown(why), `, ${why}.`];
  }
  const { length, fit } = rank.typical;
  const lengths = `${whole(length.prompt_tokens)} prompt + ${whole(length.generation_tokens)} generated tokens, mean of ${whole(length.requests)} finished in the last ${period}. `;
  if (!fit) return [head, lengths, "How many fit is ", unknown("only full length is known"), ", only the cost of full length is known."];
  const why = whyFitsUnknown(server, snapshot);
  return [head, lengths, "Guaranteed ", figure(fit.guaranteed, why), ", fits now ", figure(fit.now, why), ", empty ",
    figure(fit.empty, why), ", resident limit ", figure(fit.resident_limit, why), "."];
}

/** What one looks up rather than watches. */
function facts(server, snapshot) {
  const { target, reading, ranks } = server;
  const silence = whyPageIsSilent(server);
  const model = because(sourceOf(snapshot, "model", target.name)) ?? silence;
  const each = (value, format = whole, why = silence) => (ranks.some((rank) => isKnown(value(rank)))
    ? ranks.map((rank, index) => [index ? " \u00b7 " : "", figure(value(rank), why, format)])
    : explained(null, why));
  const mean = (total) => (total && total.count > 0 ? total.sum / total.count : null);
  const seconds = (value) => `${shortFormat.format(value)}\u00a0s`;
  const blocks = ranks.some((rank) => !rank.reading.slots);
  const rows = [
    ["Address", foreign(target.url)],
    ["Started", explained(server.started_at, "neither the page nor the process says", (at) => moment(at, snapshot.taken_at))],
    ["GPU memory", deviceMemory(server, snapshot)],
    ["Tokens the pool holds at full length", each((rank) => rank.capacity_tokens, whole, model)],
    blocks && ["Blocks of one full-length request", each((rank) => rank.resident_blocks, whole, model)],
    blocks && ["Bytes per token", each((rank) => rank.bytes_per_token, whole, model)],
    blocks && ["Engine\u2019s own maximum concurrency", each((rank) => rank.reading.max_concurrency, (value) => shortFormat.format(value))],
    blocks && ["Textbook ceiling", each((rank) => rank.ceiling, whole, model)],
    ["Worst-case demand", each((rank) => rank.worst_case_ratio, (value) => `${shortFormat.format(value)} pools`,
      "the pool or the request limit is not known; set request_limit")],
    ["Request limit", each((rank) => rank.load.request_limit, whole, "no page states it; set request_limit")],
    blocks && ["Cache dtype", explained(server.cache_dtype ?? reading.cache_dtype, silence, foreign)],
    blocks && (isKnown(reading.pin_bytes) ? ["Pinned pool of each card", mib(reading.pin_bytes)]
      : ["Share of each card", explained(reading.share_ratio, silence, percent)]),
    ["Prefix cache hits", each((rank) => ratioOf(rank.reading.prefix_cache_hits_total, rank.reading.prefix_cache_queries_total),
      percent, "nothing was looked up, or the page does not say")],
    blocks && ["Mean wait in the queue since start", each((rank) => mean(rank.reading.queue_seconds), seconds, "none finished yet")],
    blocks && ["Mean time to first token since start", each((rank) => mean(rank.reading.time_to_first_token_seconds), seconds, "none finished yet")],
    ["Settings fingerprint", explained(server.fingerprint, silence, foreign)],
  ].filter(Boolean);
  return h("dl", { class: "facts" }, rows.map(([term, value]) => h("div", { key: term }, h("dt", {}, term), h("dd", {}, value))));
}

function ratioOf(part, total) {
  return isKnown(part) && total > 0 ? part / total : null;
}

function deviceMemory(server, snapshot) {
  const held = Object.entries(server.device_bytes);
  if (!held.length) {
    const why = snapshot.devices.length
      ? because(sourceOf(snapshot, "procfs", server.target.name)) ?? "no process of it was found on a card"
      : whyNoCards(snapshot);
    return explained(null, why);
  }
  return held.map(([uuid, bytes], index) => {
    const device = snapshot.devices.find((one) => one.reading.uuid === uuid);
    return [index ? " \u00b7 " : "", figure(bytes, "the driver does not say", mib), ` on GPU ${device ? device.reading.index : uuid}`];
  });
}

// ---------------------------------------------------------------- cards

function deviceCard(device, snapshot) {
  const { reading } = device;
  const why = because(sourceOf(snapshot, "nvml", reading.uuid)) ?? reading.memory_reason ?? "the driver does not say";
  return h("article", { key: reading.uuid, class: "card", "aria-label": `GPU ${reading.index}` },
    h("div", { class: "heading" },
      h("h3", {}, `GPU ${reading.index} `, isKnown(reading.name) ? foreign(reading.name) : unknown(why))),
    h("p", { class: "meta" }, [reading.total_bytes, reading.used_bytes, reading.free_bytes].some(isKnown)
      ? [figure(reading.total_bytes, why, mib), " in all \u00b7 ", figure(reading.used_bytes, why, mib), " used \u00b7 ",
        figure(reading.free_bytes, why, mib), " free"]
      : ["memory ", unknown(why)],
      " \u00b7 driver ", isKnown(reading.driver) ? foreign(reading.driver) : unknown(why),
      " \u00b7 ", foreign(reading.uuid)),
    ledgerBar(device, why),
    h("div", { class: "tables" }, ledgerTable(device, why), h("div", {}, processTable(device, snapshot))));
}

/** The parts that are known, then what is left of the total: that is unknown, neither used nor free. */
function ledgerParts({ reading, ledger: known }) {
  const parts = known.map((part) => ({ ...part, key: `${part.component} ${part.server}` }));
  const rest = isKnown(reading.total_bytes) ? reading.total_bytes - sum(parts.map((part) => part.bytes)) : 0;
  if (rest > 0) {
    const free = parts.findIndex((part) => part.component === "free");
    parts.splice(free < 0 ? parts.length : free, 0, { component: "unknown", server: "", bytes: rest, key: "unknown" });
  }
  return { parts, excess: -rest };
}

function ledgerBar(device, why) {
  const { parts, excess } = ledgerParts(device);
  if (!parts.length) {
    return [h("div", { class: "bar stack blind", "aria-hidden": "true" }),
      h("p", { class: "note" }, "Where its memory went is ", unknown(why), ": ", foreign(why), ".")];
  }
  return [
    h("div", { class: "bar stack", "aria-hidden": "true" }, parts.map((part, index) => part.bytes > 0 &&
      h("span", { key: part.key, class: `part ${part.component}`, grow: part.bytes },
        h("span", { class: "label" }, h("b", {}, index + 1), " ", partName(part))))),
    excess > 0 && h("p", { class: "note" }, "The parts exceed the total: memory that processes share is counted once for each."),
  ];
}

function ledgerTable(device, why) {
  const { parts } = ledgerParts(device);
  const total = device.reading.total_bytes;
  return parts.length > 0 && table({
    caption: `Ledger of GPU ${device.reading.index}`,
    className: "parts",
    columns: [{ label: "Part" }, { label: "Memory", number: true }, { label: "Of the card", number: true }],
    rows: parts.map((part, index) => ({
      key: part.key,
      cells: [
        [h("span", { class: `swatch part ${part.component}` }, index + 1), " ",
          h("span", { title: PARTS[part.component]?.[1] }, partName(part))],
        mib(part.bytes),
        figure(total ? part.bytes / total : null, why, percent),
      ],
    })),
  });
}

function partName({ component, server }) {
  const name = PARTS[component]?.[0] ?? component.replaceAll("_", " ");
  return server ? [foreign(server), " ", name] : name;
}

function processTable(device, snapshot) {
  const { reading } = device;
  const processes = snapshot.processes.filter((process) => process.device === reading.uuid);
  const partial = reading.processes_reason && h("p", { class: "note" },
    "The list of processes is incomplete: ", foreign(reading.processes_reason), ".");
  if (!processes.length) return partial || h("p", { class: "note" }, "No process holds memory here.");
  return [table({
    caption: `Processes on GPU ${reading.index}`,
    className: "processes",
    columns: [{ label: "PID" }, { label: "Name" }, { label: "Server" }, { label: "Matched by" }, { label: "Memory", number: true }],
    rows: processes.map((process) => ({
      key: process.pid,
      cells: [
        String(process.pid),
        isKnown(process.name) ? foreign(process.name) : unknown("its /proc entry cannot be read"),
        isKnown(process.server) ? foreign(process.server) : "none",
        MATCHES[process.match] ?? process.match,
        figure(process.used_bytes, "the driver says N/A", mib),
      ],
    })),
  }), partial];
}

function devicesOf(snapshot) {
  if (snapshot.devices.length) return snapshot.devices.map((device) => deviceCard(device, snapshot));
  return [h("p", { class: "note" }, "Cards: ", explained(null, whyNoCards(snapshot)), ".")];
}

function whyNoCards(snapshot) {
  const asked = snapshot.sources.filter((state) => state.source === "nvml");
  return because(asked.find((state) => state.reason))
    ?? (asked.length ? "the driver lists none" : "reading NVML is switched off in the configuration");
}

// ---------------------------------------------------------------- what is not known

function unknownsOf(snapshot) {
  const down = snapshot.sources.filter((state) => state.reason);
  const hints = down.filter((state) => state.reason === "not_enabled");
  const faults = down.filter((state) => state.reason !== "not_enabled");
  const missing = snapshot.servers.filter((server) => server.reading?.missing.length);
  return [
    faults.length ? sourceTable("Sources without an answer", faults, snapshot)
      : h("p", { class: "note" }, "Every source that is switched on gave an answer."),
    missing.length > 0 && h("div", { class: "missing" }, missing.map((server) => h("p", { key: server.target.name, class: "note" },
      foreign(server.target.name), " should state and does not: ", foreign(server.reading.missing.join(", ")), "."))),
    hints.length > 0 && h("details", { key: "hints" },
      h("summary", {}, count(hints.length, "source is not enabled", "sources are not enabled")),
      sourceTable("Sources that are not enabled", hints, snapshot)),
  ];
}

function sourceTable(caption, states, snapshot) {
  return table({
    caption,
    className: "sources",
    columns: [{ label: "Source" }, { label: "Of" }, { label: "Reason" }, { label: "Detail" }, { label: "Last success" }],
    rows: states.map((state) => ({
      key: `${state.source} ${state.target}`,
      cells: [
        state.source,
        foreign(state.target),
        h("code", {}, state.reason),
        state.detail ? foreign(state.detail) : "none given",
        isKnown(state.last_success_at) ? moment(state.last_success_at, snapshot.taken_at) : "never since kvwatch started",
      ],
    })),
  });
}

// ---------------------------------------------------------------- asking, and the age of what was answered

const $ = (id) => document.getElementById(id);

let latest = null; // the last snapshot, how old it was when it came, and when that was
let silent = null; // since when asking fails, and how
let intervalSeconds = null;
const polls = []; // sequence and time of the last ones seen

/** Take the interval from the snapshot, or measure it over the polls seen lately. */
function learnInterval({ sequence, taken_at: at, interval_seconds: stated }) {
  const last = polls.at(-1);
  if (last && sequence < last.sequence) polls.length = 0; // the daemon was started anew
  if (!last || sequence !== last.sequence) polls.push({ sequence, at });
  if (polls.length > POLLS_REMEMBERED) polls.shift();
  const [first] = polls;
  intervalSeconds = stated ?? (polls.length > 1 ? (at - first.at) / (sequence - first.sequence) : null);
}

/** Nobody answered, or not with a snapshot; the message is for the reader. */
class Silence extends Error {}

async function fetchSnapshot() {
  const unanswered = () => {
    throw new Silence("kvwatch does not answer");
  };
  const options = { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) };
  const response = await fetch("api/v1/snapshot", options).catch(unanswered);
  if (response.status === 503) throw new Silence("kvwatch has not finished its first poll");
  if (!response.ok) throw new Silence(`kvwatch answers with HTTP ${response.status}`);
  const snapshot = await response.json().catch(unanswered);
  // The daemon's clock on both sides: the clock of this computer may be wrong.
  const answeredAt = Date.parse(response.headers.get("Date") ?? "") || Date.now();
  return { snapshot, ageSeconds: Math.max(0, answeredAt / 1000 - snapshot.taken_at), receivedAt: Date.now() };
}

async function ask() {
  try {
    const answer = await fetchSnapshot();
    learnInterval(answer.snapshot);
    latest = answer;
    show(answer.snapshot);
    silent = null;
  } catch (error) {
    const words = error instanceof Silence ? error.message : `this page cannot show what kvwatch answers (${error.message})`;
    silent = { since: silent?.since ?? Date.now(), words };
  }
  showState();
}

function show(snapshot) {
  patch($("server-list"), snapshot.servers.length ? snapshot.servers.map((server) => serverCard(server, snapshot))
    : [h("p", { class: "note" }, "No server is configured.")]);
  patch($("device-list"), devicesOf(snapshot));
  patch($("unknown-list"), unknownsOf(snapshot));
  patch($("debug-links"), snapshot.servers.length === 0 ? ["no server"] : snapshot.servers.map((server, index) =>
    [index ? ", " : "", h("a", { href: debugUrl(server.target.name) }, foreign(server.target.name))]));
  patch($("version"), [`kvwatch ${snapshot.version}`]);
  $("content").hidden = false;
}

/** Say the state; old data says first of all that it is old. */
function showState() {
  const age = latest && latest.ageSeconds + Math.max(0, Date.now() - latest.receivedAt) / 1000;
  const limit = intervalSeconds === null ? STALE_SECONDS_BEFORE_INTERVAL_IS_KNOWN
    : STALE_POLLS * Math.max(intervalSeconds, REFRESH_MS / 1000);
  const old = latest !== null && age > limit;
  let state = latest ? stateOf(latest.snapshot) : { kind: "unknown", words: ["Waiting for the first data."] };
  if (silent || old) {
    const cause = silent ? `${silent.words} (since ${clock(silent.since / 1000)}).` : "kvwatch answers but has stopped polling.";
    const words = latest
      ? [h("strong", {}, "Stale: ", cause), ` Everything below is from ${clock(latest.snapshot.taken_at)} and may be wrong.`]
      : [h("strong", {}, "No data: ", cause)];
    state = { kind: "stale", words };
  }
  patch($("state"), state.words);
  patch($("age"), latest ? [`Data ${span(age)} old`, intervalSeconds !== null && `, polled every ${pace(intervalSeconds)}`] : []);
  document.documentElement.dataset.state = state.kind;
  const mark = state.kind === "stale" ? "stale \u00b7 " : state.troubled ? `${state.troubled} not open \u00b7 ` : "";
  document.title = `${mark}kvwatch`;
}

async function keepAsking() {
  await ask();
  setTimeout(keepAsking, REFRESH_MS);
}

setInterval(showState, 1000);
document.addEventListener("visibilitychange", () => document.hidden || ask());
keepAsking();
