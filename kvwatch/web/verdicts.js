// Whether a server can take one more full-length request, and what keeps it from that.

import { whyFitsUnknown } from "./reasons.js";
import { foreign, isKnown, sum, whole } from "./words.js";

const BOUND_BY = {
  queue: "Bound by the queue.",
  slots: "Bound by request slots, not by memory.",
  memory: "Bound by the pool\u2019s memory.",
};

// A Map: the reason is a label of the engine's page and may be any string.
const WAITING = new Map([
  ["capacity", "for capacity"],
  ["deferred", "deferred"],
  ["unspecified", "for a reason that the engine does not say"],
]);

/** Return {kind, bounds}; kind: silent, asleep, full, open or unknown. */
export function verdict(server) {
  if (!server.reading) return { kind: "silent", bounds: [] };
  if (server.reading.sleeping) return { kind: "asleep", bounds: [] };
  const fits = server.ranks.map((rank) => rank.full?.guaranteed);
  const guaranteed = fits.length ? sum(fits) : null;
  if (guaranteed === null) return { kind: "unknown", bounds: [] };
  const bounds = [...new Set(server.ranks.map((rank) => rank.full.bound_by).filter(isKnown))];
  return { kind: guaranteed === 0 ? "full" : "open", guaranteed, bounds };
}

export function badge({ kind, guaranteed }) {
  return {
    silent: "no answer",
    asleep: "asleep",
    full: "cannot take one more",
    unknown: "not known",
    open: `takes ${whole(guaranteed ?? 0)} more`,
  }[kind];
}

export function verdictWords(server, { kind, bounds }, snapshot) {
  if (kind === "asleep") return "It sleeps: nothing fits until it wakes.";
  if (kind === "unknown") return ["What it can take is unknown: ", foreign(whyFitsUnknown(server, snapshot)), "."];
  const words = bounds.length < 2 ? bounds.map((bound) => BOUND_BY[bound])
    : server.ranks.map((rank, index) => [
      index ? " " : "", `Rank ${rank.reading.rank}: ${BOUND_BY[rank.full.bound_by] ?? "bound by nothing known."}`]);
  return [words, waitingWords(server)];
}

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
