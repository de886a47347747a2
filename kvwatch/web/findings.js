// What is wrong now, and what changed since yesterday: each with what to do next.

import { h } from "./elements.js";
import { foreign, isKnown, moment, percent, short, unknown } from "./words.js";

const SEVERITIES = { critical: "critical", warning: "warning", info: "to know" };
const ORDER = ["critical", "warning", "info"];
const BASELINES = { "1d": "since yesterday", "7d": "since last week", start: "since its start" };
const FACTORS = {
  pool: "pool",
  cost_per_token: "cost per token",
  prompt_length: "prompt length",
  generation_length: "answer length",
};
const FULL_BAR = Math.log(4);

export function findingList(snapshot) {
  const { findings, unjudged } = snapshot;
  const sorted = [...findings].sort((a, b) => ORDER.indexOf(a.severity) - ORDER.indexOf(b.severity));
  return [
    sorted.length === 0 && h("p", { class: "note" }, unjudged.length
      ? "No finding among what can be judged." : "No finding."),
    sorted.length > 0 && h("ul", { class: "findings" }, sorted.map((finding) =>
      h("li", { key: `${finding.rule} ${finding.server} ${finding.device}`, class: "finding", "data-severity": finding.severity },
        h("p", {},
          h("span", { class: "badge" }, SEVERITIES[finding.severity] ?? finding.severity), " ",
          h("b", {}, foreign(finding.summary)),
          h("span", { class: "aside" }, ` since ${moment(finding.since, snapshot.taken_at)}`)),
        h("p", {}, foreign(finding.detail)),
        h("p", {}, h("b", {}, "Next: "), foreign(finding.next_step))))),
    unjudged.length > 0 && h("details", { key: "unjudged" },
      h("summary", {}, "Not judged: that these are no findings is no all-clear"),
      h("ul", { class: "notes" }, unjudged.map((one) => h("li", { key: `${one.rule} ${one.server} ${one.device}` },
        h("code", {}, one.rule), " ", (one.server || one.device) && [foreign(one.server || one.device), ": "], foreign(one.why))))),
  ];
}

export function changeList(snapshot) {
  const changes = snapshot.capacity_changes;
  if (!changes.length) {
    return [h("p", { class: "note" }, "Changes of capacity are ", unknown("no history yet"),
      snapshot.history ? ", the history has no hour to compare with yet." : ", no history is kept.")];
  }
  const told = changes.filter((change) => change.cause !== "not_enough_data" && change.cause !== "no_change");
  const calm = changes.filter((change) => change.cause === "no_change");
  const silent = changes.filter((change) => change.cause === "not_enough_data");
  return [
    told.map((change) => h("article", { key: keyOf(change), class: "card change", "aria-label": `change of ${change.server}` },
      h("div", { class: "heading" },
        h("h3", {}, foreign(change.server), ` ${BASELINES[change.baseline] ?? change.baseline}`),
        h("span", { class: "badge" }, isKnown(change.ratio) ? `\u00d7 ${short(change.ratio)}` : "ratio not known")),
      h("p", {}, foreign(change.headline)),
      h("p", { class: "aside" }, "Cause ", h("code", {}, change.cause), `, confidence ${change.confidence}`),
      factorBars(change),
      h("details", { key: "more" }, h("summary", {}, "What was seen, and what can be done"),
        h("ul", { class: "notes" }, change.evidence.map((text, index) => h("li", { key: index }, foreign(text)))),
        h("ul", { class: "notes" }, change.levers.map((text, index) => h("li", { key: index }, foreign(text)))),
        h("p", {}, h("code", {}, foreign(`kvwatch triage --server ${change.server} --baseline ${change.baseline}`)))))),
    calm.length > 0 && h("p", { class: "note" }, "No change that matters: ", list(calm), "."),
    silent.length > 0 && h("p", { class: "note" }, "Cannot tell yet: ", list(silent), "."),
  ];
}

function keyOf({ server, baseline }) {
  return `${server} ${baseline}`;
}

function list(changes) {
  return changes.map((change, index) => [index ? ", " : "", foreign(change.server), ` ${BASELINES[change.baseline] ?? change.baseline}`]);
}

/** A bar for each factor around a middle: to the left what took capacity, to the right what gave. */
function factorBars({ factors }) {
  const entries = Object.entries(factors);
  return entries.length > 0 && h("dl", { class: "factors" }, entries.map(([name, log]) => {
    const part = Math.min(1, Math.abs(log) / FULL_BAR);
    const less = log < 0 ? part : 0;
    const more = log > 0 ? part : 0;
    return h("div", { key: name }, h("dt", {}, FACTORS[name] ?? name.replaceAll("_", " ")),
      h("dd", {},
        h("span", { class: "bar factor", "aria-hidden": "true" },
          h("span", { grow: 1 - less }), h("span", { class: "less", grow: less }),
          h("span", { class: "more", grow: more }), h("span", { grow: 1 - more })),
        h("span", { class: "number" }, effect(log))));
  }));
}

function effect(log) {
  const change = Math.expm1(log);
  if (Math.abs(change) < 0.0005) return "no change";
  return change < 0 ? `\u2212${percent(-change)}` : `+${percent(change)}`;
}
