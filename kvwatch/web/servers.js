// A server: its pools, what fits, and notes.

import { h } from "./elements.js";
import { facts } from "./facts.js";
import { fitTable } from "./fits.js";
import { because, sourceOf, whyFitsUnknown, whyPageIsSilent, whyUsageUnknown } from "./reasons.js";
import { badge, verdict, verdictWords } from "./verdicts.js";
import { count, figure, foreign, isKnown, mib, moment, percent, span, unknown, whole } from "./words.js";

const ENGINES = { vllm: "vLLM", llamacpp: "llama.cpp" };

export function serverList(snapshot) {
  if (!snapshot.servers.length) return [h("p", { class: "note" }, "No server is configured.")];
  return snapshot.servers.map((server) => serverCard(server, snapshot));
}

export function debugLinks({ servers }) {
  if (!servers.length) return ["no server"];
  return servers.map(({ target }, index) => [index ? ", " : "", h("a", { href: debugUrl(target.name) }, foreign(target.name))]);
}

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
      h("span", {}, title, known ? [h("b", {}, percent(ratio)), " used"]
        : ["use ", unknown(why), h("span", { class: "aside" }, ", ", foreign(why))]),
      h("span", { class: "aside" }, [blocks, cells, busy].filter(Boolean).map((part, index) => [index ? " \u00b7 " : "", part]),
        isKnown(rank.capacity_bytes) && ` \u00b7 ${mib(rank.capacity_bytes)}`)),
    h("div", { class: known ? "bar" : "bar blind", "aria-hidden": "true" },
      h("span", { class: "used", grow: known ? ratio : 0 }), h("span", { class: "rest", grow: known ? 1 - ratio : 1 })));
}

function notes(server, snapshot) {
  const { ranks, target } = server;
  const list = ranks.map((rank) => typicalNote(rank, server, snapshot));
  if (ranks.some((rank) => rank.basis === "admission")) {
    list.push([h("b", {}, "Lower bounds. "),
      "Only the engine\u2019s start-up charge of a full-length request is known, not what one holds while it runs."]);
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
  const lengths = `${whole(length.prompt_tokens)} prompt + ${whole(length.generation_tokens)} generated tokens, `
    + `mean of ${whole(length.requests)} finished in the last ${period}. `;
  if (!fit) {
    return [head, lengths, "How many fit is ", unknown("only full length is known"), ", only the cost of full length is known."];
  }
  const why = whyFitsUnknown(server, snapshot);
  return [head, lengths, "Guaranteed ", figure(fit.guaranteed, why), ", fits now ", figure(fit.now, why), ", empty ",
    figure(fit.empty, why), ", resident limit ", figure(fit.resident_limit, why), "."];
}
