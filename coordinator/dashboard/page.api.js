// Requests to the API with the user's token, which is stored for this tab only and sent in a header: no other origin has it.

const PAGE = 100;
export const ROOT = new URL(".", import.meta.url).pathname.slice(0, -1); // the path in front of the coordinator's own
const KEY = `token${ROOT}`, ROLES = `roles${ROOT}`; // coordinators below paths of one host share the storage
export const token = {
  get: () => sessionStorage.getItem(KEY),
  set(value, roles = null) { // roles: { role, federations } of a person who signed in at an identity provider
    sessionStorage.setItem(KEY, value);
    if (roles) sessionStorage.setItem(ROLES, JSON.stringify(roles));
  },
  isOfProvider: () => sessionStorage.getItem(ROLES) !== null,
  forget: () => [KEY, ROLES].forEach((key) => sessionStorage.removeItem(key)),
};

// The role in a federation, or in all; null = none. The coordinator decides; the page leaves out what it would refuse.
export function roleIn(fid) {
  const value = token.get(), roles = JSON.parse(sessionStorage.getItem(ROLES) || "null"), ranked = ["admin", "operator", "auditor"];
  if (!value) return null;
  if (roles) return ranked.find((role) => role === roles.role || role === roles.federations[fid]) || null;
  return { tsr_aud_: "auditor", tsr_op_: "operator" }[/^tsr_[a-z]+_/.exec(value)] || "admin";
}

// A refusal with its problem document; null where something else answered.
class Refused extends Error {
  constructor(status, message, problem) { super(message); Object.assign(this, { status, problem }); }
}

async function refusal(answer, read) {
  const problem = await answer.json().catch(() => null);
  return new Refused(answer.status, (problem && read(problem)) || answer.statusText || `status ${answer.status}`, problem);
}

export async function fetchJson(path) {
  const answer = await fetch(ROOT + path, { headers: { Authorization: `Bearer ${token.get()}` } });
  if (answer.status === 404) return null;
  if (!answer.ok) throw await refusal(answer, (problem) => problem.title);
  return answer.json();
}

export async function all(path) {
  const items = [];
  for (let after = ""; after !== null;) {
    const page = await fetchJson(`${path}?limit=${PAGE}${after && `&after=${encodeURIComponent(after)}`}`);
    if (!page) return items;
    items.push(...page.items);
    after = page.next;
  }
  return items;
}

// An action.
export async function send(method, path, body) {
  const headers = { Authorization: `Bearer ${token.get()}`, ...(body === undefined ? {} : { "Content-Type": "application/json" }) };
  const answer = await fetch(ROOT + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) }).catch(() => {
    throw new Error("The coordinator did not answer. The action may have been carried out: check before you repeat it.");
  });
  if (!answer.ok) throw await refusal(answer, (problem) => problem.detail || problem.title);
  return answer.status === 204 ? null : answer.json();
}
