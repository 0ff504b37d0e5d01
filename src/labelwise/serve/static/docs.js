// A small rendering of the OpenAPI document: operations, parameters, bodies and answers with an example each.
import { send } from "./api.js";
import { byId, element, followTheme } from "./dom.js";

let schemas = {};
const resolved = (schema) => (schema?.$ref ? schemas[schema.$ref.split("/").pop()] : schema) ?? {};

function typeOf(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" or ");
  if (schema.type === "array") return `list of ${typeOf(schema.items ?? {})}`;
  return schema.type ?? "anything";
}

function example(schema, depth = 0) {
  const one = resolved(schema);
  if (one.examples) return one.examples[0];
  if (one.default !== undefined) return one.default;
  if (one.const !== undefined) return one.const;
  if (one.enum) return one.enum[0];
  if (one.anyOf) return example(one.anyOf[0], depth);
  if (one.type === "object" && one.properties && depth < 5) {
    const names = Object.keys(one.properties);
    return Object.fromEntries(names.map((name) => [name, example(one.properties[name], depth + 1)]));
  }
  if (one.type === "array") return depth < 5 ? [example(one.items ?? {}, depth + 1)] : [];
  return { string: "text", integer: 1, number: 0.5, boolean: true, object: {} }[one.type] ?? null;
}

// Text with `code`.
const prose = (text) => (text ?? "").split("`").map((part, index) => (index % 2 ? element("code", {}, part) : part));

function table(rows) {
  const made = rows.map(([name, type, about]) =>
    element("tr", {}, element("td", {}, element("code", {}, name)), element("td", {}, type), element("td", {}, ...prose(about))));
  return element("table", {}, element("tbody", {}, ...made));
}

function fields(schema) {
  const one = resolved(schema);
  return Object.entries(one.properties ?? {}).map(([name, field]) => {
    const wanted = one.required?.includes(name) ? `${typeOf(field)}, needed` : typeOf(field);
    return [name, wanted, field.description ?? resolved(field).description ?? ""];
  });
}

function operation(path, method, about) {
  const parts = [element("h2", {}, element("span", { class: "method" }, method.toUpperCase()), element("code", {}, path))];
  parts.push(...(about.description ?? "").split("\n\n").map((text) => element("p", {}, ...prose(text))));
  if (about.parameters) {
    parts.push(element("h3", {}, "Parameters"), table(about.parameters.map((one) => [one.name, `${one.in}, ${typeOf(one.schema)}`, one.description ?? ""])));
  }
  for (const [media, { schema }] of Object.entries(about.requestBody?.content ?? {})) {
    parts.push(element("h3", {}, `Body: ${media}`), table(fields(schema.allOf ? schema.allOf[0] : schema)));
    const examples = resolved(schema).examples ?? [];
    parts.push(...examples.map((one) => element("pre", {}, JSON.stringify(one, null, 2))));
  }
  for (const [status, answer] of Object.entries(about.responses)) {
    const content = answer.content?.["application/json"];
    const plain = answer.content?.["text/plain"];
    if (plain) parts.push(element("h3", {}, `Answer: ${status}, text/plain`), element("pre", {}, plain.example ?? ""));
    if (content) parts.push(element("h3", {}, `Answer: ${status}`), element("pre", {}, JSON.stringify(example(content.schema), null, 2)));
  }
  const errors = Object.entries(about.responses).filter(([, answer]) => answer.content?.["application/problem+json"]);
  if (errors.length) parts.push(element("h3", {}, "Problems"), table(errors.map(([status, answer]) => [status, "ProblemDetails", answer.description])));
  return element("article", { id: about.operationId }, ...parts);
}

followTheme(byId("theme"));
const made = await send("openapi.json");
schemas = made.components.schemas;
byId("about").replaceChildren(...made.info.description.split("\n\n").map((text) => element("p", {}, ...prose(text))));
const all = Object.entries(made.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, about]) => operation(path, method, about)));
byId("operations").replaceChildren(...all);
