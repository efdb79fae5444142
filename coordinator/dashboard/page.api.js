// Requests to the API with the user's token, which is stored for this tab only and sent in a header: no other origin has it.

const PAGE = 100;
const ROOT = new URL(".", import.meta.url).pathname.slice(0, -1); // the path in front of the coordinator's own
const KEY = `token${ROOT}`; // coordinators below paths of one host share the storage
export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

const titleOf = (answer, read) => answer.json().then(read, () => answer.statusText || `status ${answer.status}`);

export async function fetchJson(path) {
  const answer = await fetch(ROOT + path, { headers: { Authorization: `Bearer ${token.get()}` } });
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Refused(answer.status, await titleOf(answer, (problem) => problem.title));
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
    throw new Error("The coordinator did not answer. The action may have happened: look before you repeat it.");
  });
  if (!answer.ok) throw new Refused(answer.status, await titleOf(answer, (problem) => problem.detail || problem.title));
  return answer.status === 204 ? null : answer.json();
}
