// What one looks up about a server rather than watches.

import { h } from "./elements.js";
import { because, sourceOf, whyNoCards, whyPageIsSilent } from "./reasons.js";
import { explained, figure, foreign, isKnown, mib, moment, percent, short, whole } from "./words.js";

export function facts(server, snapshot) {
  const { target, reading, ranks } = server;
  const silence = whyPageIsSilent(server);
  const model = because(sourceOf(snapshot, "model", target.name)) ?? silence;
  const each = (value, format = whole, why = silence) => (ranks.some((rank) => isKnown(value(rank)))
    ? ranks.map((rank, index) => [index ? " \u00b7 " : "", figure(value(rank), why, format)])
    : explained(null, why));
  const mean = (total) => (total && total.count > 0 ? total.sum / total.count : null);
  const seconds = (value) => `${short(value)}\u00a0s`;
  const blocks = ranks.some((rank) => !rank.reading.slots);
  const rows = [
    ["Address", foreign(target.url)],
    ["Started", explained(server.started_at, "neither the page nor the process says", (at) => moment(at, snapshot.taken_at))],
    ["GPU memory", deviceMemory(server, snapshot)],
    ["Tokens the pool holds at full length", each((rank) => rank.capacity_tokens, whole, model)],
    blocks && ["Blocks of one full-length request", each((rank) => rank.resident_blocks, whole, model)],
    blocks && ["Bytes per token", each((rank) => rank.bytes_per_token, whole, model)],
    blocks && ["Engine\u2019s own maximum concurrency", each((rank) => rank.reading.max_concurrency, short)],
    blocks && ["Textbook ceiling", each((rank) => rank.ceiling, whole, model)],
    ["Worst-case demand", each((rank) => rank.worst_case_ratio, (value) => `${short(value)} pools`,
      "the pool or the request limit is not known; set request_limit")],
    ["Request limit", each((rank) => rank.load.request_limit, whole, "no page states it; set request_limit")],
    blocks && ["Cache dtype", explained(server.cache_dtype ?? reading.cache_dtype, silence, foreign)],
    blocks && (isKnown(reading.pin_bytes) ? ["Pinned pool of each card", mib(reading.pin_bytes)]
      : ["Share of each card", explained(reading.share_ratio, silence, percent)]),
    ["Prefix cache hits", each((rank) => ratioOf(rank.reading.prefix_cache_hits_total, rank.reading.prefix_cache_queries_total),
      percent, "nothing was looked up, or the page does not say")],
    blocks && ["Mean wait in the queue since start", each((rank) => mean(rank.reading.queue_seconds),
      seconds, "none finished yet")],
    blocks && ["Mean time to first token since start", each((rank) => mean(rank.reading.time_to_first_token_seconds),
      seconds, "none finished yet")],
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
