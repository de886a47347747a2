// The line of state: what a reader should know before anything else.

import { h } from "./elements.js";
import { verdict } from "./verdicts.js";
import { count, foreign } from "./words.js";

const BOUNDS = {
  queue: "requests already wait for capacity",
  slots: "the request slots are taken",
  memory: "the pool has no room",
};

/** Join names as "a", "a and b" or "a, b and c", each isolated. */
function names(servers) {
  return servers.map((server, index) => [
    index === 0 ? "" : index === servers.length - 1 ? " and " : ", ",
    foreign(server.target.name),
  ]);
}

/** The sentences of the state line; no counts that change at every poll, since it is read aloud. */
export function stateOf(snapshot) {
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
