// A card: where its memory went, and the processes on it.

import { h, table } from "./elements.js";
import { because, sourceOf, whyNoCards } from "./reasons.js";
import { explained, figure, foreign, isKnown, mib, percent, sum, unknown } from "./words.js";

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

export function cardList(snapshot) {
  if (snapshot.devices.length) return snapshot.devices.map((device) => deviceCard(device, snapshot));
  return [h("p", { class: "note" }, "Cards: ", explained(null, whyNoCards(snapshot)), ".")];
}

function deviceCard(device, snapshot) {
  const { reading } = device;
  if (reading.divided) return dividedCard(reading);
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

/** Of a GPU whose memory and processes are told by its MIG instances, each a card of its own. */
function dividedCard(reading) {
  return h("article", { key: reading.uuid, class: "card", "aria-label": `GPU ${reading.index}` },
    h("div", { class: "heading" },
      h("h3", {}, `GPU ${reading.index} `, isKnown(reading.name) ? foreign(reading.name) : unknown("the driver does not say"))),
    h("p", { class: "meta" }, "divided by MIG: each instance has a card of its own \u00b7 ", foreign(reading.uuid)));
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

/** Where a process runs: its pod, else its container, else its service. */
function home(process, snapshot) {
  const pod = (snapshot.pods ?? []).find((one) => one.container === process.container);
  const place = pod ? [foreign(`${pod.namespace}/${pod.pod}`)]
    : process.container ? ["container ", foreign(process.container.slice(0, 12))]
      : process.unit ? [foreign(process.unit)] : null;
  return place && h("span", { class: "aside" }, " in ", place);
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
        [isKnown(process.name) ? foreign(process.name) : unknown("its /proc entry cannot be read"), home(process, snapshot)],
        [isKnown(process.server) ? foreign(process.server) : process.orphan ? "" : "none",
          process.orphan && h("b", {}, process.server ? " (gone): orphan" : "orphan")],
        MATCHES[process.match] ?? process.match,
        figure(process.used_bytes, "the driver says N/A", mib),
      ],
    })),
  }), partial];
}
