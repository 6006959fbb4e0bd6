"use strict";
// Every text goes in as text: nothing of the document is read as markup.
const element = (name, text, kind) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
};

const resolved = (schema, whole, depth = 0) => {
  if (Array.isArray(schema)) return schema.map((part) => resolved(part, whole, depth));
  if (!schema || typeof schema !== "object" || depth > 12) return schema;
  if (schema.$ref) return resolved(schema.$ref.split("/").slice(1).reduce((at, key) => at[key], whole), whole, depth + 1);
  return Object.fromEntries(Object.entries(schema).map(([key, value]) => [key, resolved(value, whole, depth + 1)]));
};

const shown = (title, schema, whole) => {
  const box = element("div");
  box.append(element("strong", title), element("pre", JSON.stringify(resolved(schema, whole), null, 2)));
  return box;
};

const operation = (path, method, described, whole) => {
  const box = element("details");
  const head = element("summary");
  head.append(element("span", method.toUpperCase(), "method"), element("code", path), element("span", described.summary));
  const inside = element("div", undefined, "inside");
  for (const [kind, { schema }] of Object.entries(described.requestBody?.content ?? {})) {
    inside.append(shown(`Body, ${kind}`, schema, whole));
  }
  for (const [kind, { schema }] of Object.entries(described.responses["200"].content ?? {})) {
    inside.append(shown(`Answer, ${kind}`, schema, whole));
  }
  const statuses = element("dl");
  for (const [status, answer] of Object.entries(described.responses)) {
    statuses.append(element("dt", status), element("dd", answer.description));
  }
  inside.append(statuses);
  box.append(head, inside);
  return box;
};

const show = (whole) => {
  document.getElementById("about").textContent = whole.info.description;
  const groups = new Map();
  for (const [path, methods] of Object.entries(whole.paths)) {
    for (const [method, described] of Object.entries(methods)) {
      const tag = described.tags[0];
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(operation(path, method, described, whole));
    }
  }
  const main = document.getElementById("routes");
  for (const [tag, operations] of groups) main.append(element("h2", tag), ...operations);
};

fetch("openapi.json")
  .then((answer) => answer.json())
  .then(show)
  .catch((error) => { document.getElementById("about").textContent = `The document cannot be read: ${error}`; });
