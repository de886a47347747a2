// Elements described as plain objects, and the document brought up to date with them in place.

/** Describe an element. `key` tells siblings apart; `grow` is the flex share of a bar's part. */
export function h(tag, attributes, ...children) {
  return { tag, attributes: attributes ?? {}, children: children.flat(Infinity) };
}

/** Make `parent` hold what `children` describe, touching only what differs: focus and open <details> stay. */
export function patch(parent, children) {
  const wanted = children.flat(Infinity).map((child, index) => [child, keyOf(child, index)]);
  const keys = new Set(wanted.filter(([child]) => isShown(child)).map(([, key]) => key));
  const present = new Map();
  for (const node of [...parent.childNodes]) {
    if (keys.has(node.patchKey)) present.set(node.patchKey, node);
    else node.remove();
  }
  let next = parent.firstChild;
  for (const [child, key] of wanted) {
    if (!isShown(child)) continue;
    const node = present.get(key) ?? create(child, key);
    if (typeof child === "object") update(node, child);
    else if (node.data !== String(child)) node.data = String(child);
    if (node === next) next = next.nextSibling;
    else parent.insertBefore(node, next);
  }
}

function isShown(child) {
  return child !== null && child !== undefined && child !== false;
}

function keyOf(child, index) {
  return child?.attributes?.key ?? `${index} ${child?.tag ?? ""}`;
}

function create(child, key) {
  const node = typeof child === "object" ? document.createElement(child.tag) : document.createTextNode("");
  node.patchKey = key;
  return node;
}

function update(node, { attributes, children }) {
  const { key, grow, ...plain } = attributes;
  for (const name of node.getAttributeNames()) {
    if (!(name in plain) && name !== "open" && name !== "style") node.removeAttribute(name);
  }
  for (const [name, value] of Object.entries(plain)) {
    if (!isShown(value)) node.removeAttribute(name);
    else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
  }
  if (grow !== undefined) node.style.flexGrow = String(grow);
  patch(node, children);
}

/**
 * A table that narrow screens show as blocks; the roles keep it a table for screen readers.
 * The first column names the rows unless it is a number.
 */
export function table({ caption, className, columns, rows }) {
  const head = columns.map(({ label, title, number }) =>
    h("th", { scope: "col", role: "columnheader", title, class: number && "number", "data-of": label }, label));
  const body = rows.map(({ key, cells }) =>
    h("tr", { key, role: "row" }, cells.map((cell, index) => {
      const names = index === 0 && !columns[0].number;
      return h(names ? "th" : "td", {
        key: index,
        scope: names ? "row" : null,
        role: names ? "rowheader" : "cell",
        class: columns[index].number && "number",
        "data-label": columns[index].label,
      }, cell);
    })));
  return h("table", { role: "table", class: className },
    h("caption", {}, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)),
    h("tbody", { role: "rowgroup" }, body));
}
