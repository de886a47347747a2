// What is not known: sources without an answer, and what the servers' pages lack.

import { h, table } from "./elements.js";
import { count, foreign, isKnown, moment } from "./words.js";

export function unknownList(snapshot) {
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
