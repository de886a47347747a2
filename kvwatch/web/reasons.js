// Why something is not known, in words that say what to do where something can be done.

import { isKnown } from "./words.js";

export function sourceOf(snapshot, source, target) {
  return snapshot.sources.find((state) => state.source === source && state.target === target);
}

export function because(state) {
  if (!state?.reason) return null;
  return state.detail ? `${state.reason}: ${state.detail}` : state.reason;
}

/** Why a server's fits are not known, in words that say what to do where something can be done. */
export function whyFitsUnknown(server, snapshot) {
  const engine = because(sourceOf(snapshot, "engine", server.target.name));
  if (engine) return engine;
  if (server.reading?.sleeping) return "sleeping: the server has given its pool back, nothing fits until it wakes";
  if (server.ranks.some((rank) => !rank.full)) {
    const model = sourceOf(snapshot, "model", server.target.name);
    return because(model) ?? "unknown_pool: the server does not state its pool";
  }
  return whyPageIsSilent(server);
}

export function whyUsageUnknown(rank, server) {
  if (server.reading.sleeping) return "sleeping: the server has given its pool back";
  if (!rank.reading.slots) return whyPageIsSilent(server);
  return isKnown(server.target.pool_tokens)
    ? "not_found: /slots was not read, so what the busy slots hold is not known"
    : "unknown_pool: no page states the pool; set pool_tokens";
}

export function whyPageIsSilent(server) {
  const missing = server.reading?.missing ?? [];
  return missing.length ? `the server\u2019s page lacks ${missing.join(", ")}` : "the server\u2019s page does not say";
}

export function whyNoCards(snapshot) {
  const asked = snapshot.sources.filter((state) => state.source === "nvml");
  return because(asked.find((state) => state.reason))
    ?? (asked.length ? "the driver lists none" : "reading NVML is switched off in the configuration");
}
