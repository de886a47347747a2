// The live page: ask the daemon for its snapshot every few seconds and bring the document up to date with it.
// Names, models and details come from other programs: they reach the document as text nodes and attribute
// values only.

import { cardList } from "./cards.js";
import { h, patch } from "./elements.js";
import { changeList, findingList } from "./findings.js";
import { debugLinks, serverList } from "./servers.js";
import { stateOf } from "./state.js";
import { unknownList } from "./unknowns.js";
import { clock, pace, span } from "./words.js";

const REFRESH_MS = 2000;
const PATIENCE_MS = 8000;
const OVERDUE_MS = 3 * REFRESH_MS;

const $ = (id) => document.getElementById(id);

let latest = null; // the last snapshot, how old it was when it came, and when that was
let silent = null; // since when asking fails, and how

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
  patch($("server-list"), serverList(snapshot));
  patch($("device-list"), cardList(snapshot));
  patch($("finding-list"), findingList(snapshot));
  patch($("change-list"), changeList(snapshot));
  patch($("unknown-list"), unknownList(snapshot));
  patch($("debug-links"), debugLinks(snapshot));
  patch($("version"), [`kvwatch ${snapshot.version}`]);
  $("content").hidden = false;
}

/** Say why what is shown may no longer hold; null while it does. */
function doubt(now) {
  if (silent) return `${silent.words} (since ${clock(silent.since / 1000)}).`;
  if (latest?.snapshot.stale) return "kvwatch answers but has stopped polling.";
  // A request that hangs has not failed yet, and a computer that slept has not asked yet.
  if (latest && now - latest.receivedAt > OVERDUE_MS) return `no answer since ${clock(latest.receivedAt / 1000)}.`;
  return null;
}

/** The state to show; old data says first of all that it is old. */
function currentState(now) {
  const cause = doubt(now);
  if (!latest) {
    return cause ? { kind: "stale", words: [h("strong", {}, "No data: ", cause)] }
      : { kind: "unknown", words: ["Waiting for the first data."] };
  }
  if (!cause) return stateOf(latest.snapshot);
  const since = clock(latest.snapshot.taken_at);
  return { kind: "stale", words: [h("strong", {}, "Stale: ", cause), ` Everything below is from ${since} and may be wrong.`] };
}

function showState() {
  const now = Date.now();
  const state = currentState(now);
  patch($("state"), state.words);
  patch($("age"), latest ? [ageWords(latest, now)] : []);
  document.documentElement.dataset.state = state.kind;
  const mark = state.kind === "stale" ? "stale \u00b7 " : state.troubled ? `${state.troubled} not open \u00b7 ` : "";
  document.title = `${mark}kvwatch`;
}

function ageWords({ snapshot, ageSeconds, receivedAt }, now) {
  const age = ageSeconds + Math.max(0, now - receivedAt) / 1000;
  return `Data ${span(age)} old, polled every ${pace(snapshot.interval_seconds)}`;
}

async function keepAsking() {
  await ask();
  setTimeout(keepAsking, REFRESH_MS);
}

setInterval(showState, 1000);
document.addEventListener("visibilitychange", () => document.hidden || ask());
keepAsking();
