// The table of fits: a row for each rank and, where there are several, one for their sum.

import { h, table } from "./elements.js";
import { whyFitsUnknown, whyPageIsSilent } from "./reasons.js";
import { figure, foreign, isKnown, sum } from "./words.js";

const FITS = [
  ["Guaranteed", "Can be added now and still be held when all have grown to full length", "guaranteed"],
  ["Fits now", "What the free part takes if the running requests do not grow", "now"],
  ["Fits empty", "What the empty pool admits at once", "empty"],
  ["Resident limit", "This many can be held at full length together", "resident_limit"],
  ["Headroom", "Resident limit minus running and waiting; negative: not all can grow to full length", "headroom"],
];

export function fitTable(server, snapshot) {
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
