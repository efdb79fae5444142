// Polls the API with the user's token, which is stored for this tab only, and shows the view that the address names:
// #/FEDERATION, #/FEDERATION/rounds/N or #/FEDERATION/clients/CLIENT.

import { at, element, link, note, render, section } from "./page.dom.js";
import { count, span } from "./page.text.js";
import { clientSections, roundSections } from "./page.details.js";
import { expertsSection } from "./page.experts.js";
import { relevanceSection } from "./page.relevance.js";
import { claimsSection, clientsSection, factsSection, headlineSection, helpSection, links, packsSection, roundsSection, termsSection } from "./page.views.js";

const REFRESH_MS = 3000, SELDOM_MS = 15000, PAGE = 100, HISTORY = 20; // HISTORY: the rounds of the first view, and of a client's
const CHANGING = 3; // so many of the newest rounds may still get updates or scores
const ROOT = new URL(".", import.meta.url).pathname.slice(0, -1); // the path in front of the coordinator's own
const KEY = `token${ROOT}`; // coordinators below paths of one host share the storage
const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};
const ui = { metric: "loss" };
const known = { federations: [], listedAt: 0, shown: null }; // shown: what is loaded of one federation
let turn = 0, running = 0, answeredAt = 0;

class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

async function fetchJson(path) {
  const answer = await fetch(ROOT + path, { headers: { Authorization: `Bearer ${token.get()}` } });
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Refused(answer.status, await answer.json().then((problem) => problem.title, () => answer.statusText || `status ${answer.status}`));
  return answer.json();
}

async function all(path) {
  const items = [];
  for (let after = ""; after !== null;) {
    const page = await fetchJson(`${path}?limit=${PAGE}${after && `&after=${encodeURIComponent(after)}`}`);
    if (!page) return items;
    items.push(...page.items);
    after = page.next;
  }
  return items;
}

function address() {
  const [, fid, kind, id] = decodeURIComponent(location.hash).split("/");
  return { fid, kind, id };
}

async function loadFederations(now) {
  if (now - known.listedAt < SELDOM_MS) return;
  known.federations = await all("/v1/federations");
  known.listedAt = now;
}

// Old rounds do not change, so each is fetched once: the newest before the first view, the earlier ones after it.
async function loadRounds(shown, path) {
  if (shown.rounds.length) {
    const newest = (await fetchJson(`${path}/rounds?limit=${CHANGING + 1}`)).items, least = newest.length ? newest.at(-1).round : 0;
    if (shown.rounds[0].round >= least) {
      shown.rounds = [...newest, ...shown.rounds.filter((round) => round.round < least)];
      return;
    }
  }
  const page = await fetchJson(`${path}/rounds?limit=${HISTORY}`);
  Object.assign(shown, { rounds: page.items, earlier: page.next });
}

async function loadEarlier(shown, path) {
  if (shown.isLoading) return;
  shown.isLoading = true;
  try {
    while (shown.earlier !== null && known.shown === shown) {
      const page = await fetchJson(`${path}/rounds?limit=${PAGE}&after=${encodeURIComponent(shown.earlier)}`);
      Object.assign(shown, { rounds: [...shown.rounds, ...page.items], earlier: page.next });
    }
    refresh();
  } catch { // the next refresh reports what is wrong, and tries again
  } finally {
    shown.isLoading = false;
  }
}

async function view(shown, path, number) {
  if (!shown.views.has(number)) shown.views.set(number, await fetchJson(`${path}/rounds/${number}`));
  return shown.views.get(number);
}

// A round whose summary is as before need not be fetched again.
function forgetChanged(shown, before) {
  const summaries = new Map(before.map((round) => [round.round, JSON.stringify(round)]));
  for (const round of shown.rounds.slice(0, CHANGING + 1)) {
    if (summaries.get(round.round) !== JSON.stringify(round)) shown.views.delete(round.round);
  }
}

async function loadSeldom(shown, path, federation, now) {
  if (now - shown.seldomAt < SELDOM_MS && shown.enrolled === federation.clients.enrolled) return;
  const [clients, packs, bank] = await Promise.all([all(`${path}/clients`), federation.plan.alignment ? fetchJson(`${path}/alignments`) : null,
    federation.plan.privacy.secure_sum ? fetchJson(`${path}/experts?limit=${PAGE}`) : null]);
  Object.assign(shown, { clients, packs: packs ? packs.items : [], bank, seldomAt: now, enrolled: federation.clients.enrolled });
}

async function loadFederation(fid, now) {
  const path = `/v1/federations/${encodeURIComponent(fid)}`, federation = await fetchJson(path);
  if (!federation) return null;
  if (!known.shown || known.shown.id !== fid) known.shown = { id: fid, rounds: [], earlier: null, views: new Map(), clients: [], packs: [], bank: null, matrix: null, seldomAt: 0 };
  const { shown } = known; // another federation may be chosen meanwhile
  const before = shown.rounds;
  await Promise.all([loadRounds(shown, path), loadSeldom(shown, path, federation, now)]);
  forgetChanged(shown, before);
  const published = shown.rounds.find((round) => round.state === "published");
  if (published && !federation.plan.privacy.secure_sum && (!shown.matrix || shown.matrix.round !== published.round)) shown.matrix = await fetchJson(`${path}/rounds/${published.round}/relevance`);
  return { path, shown, federation, published, rounds: shown.rounds, isComplete: shown.earlier === null, clients: shown.clients, packs: shown.packs, bank: shown.bank, matrix: shown.matrix,
    clientNames: Object.fromEntries(shown.clients.map((client) => [client.client_id, client.name])) };
}

async function overview(data) {
  const { path, rounds, federation, clientNames } = data;
  const published = rounds.filter((round) => round.scores && round.published_at);
  const scoredRounds = published.length ? published : rounds.filter((round) => round.scores);
  const [scored, before, start] = [scoredRounds[0], scoredRounds[1], scoredRounds.at(-1)];
  const load = async (round) => (round ? view(data.shown, path, round.round) : null);
  const isNext = before && scored.round - before.round === 1;
  const [current, shown, earlier, first] = await Promise.all([rounds[0], scored, isNext ? before : null, data.isComplete ? start : null].map(load));
  Object.assign(data, { current, scored: shown, before: earlier, start: first });
  const name = (id) => clientNames[id] || id;
  return [headlineSection(data), factsSection(data), helpSection(data, ui), clientsSection(data), roundsSection(data),
    ...(federation.plan.privacy.secure_sum ? [] : [relevanceSection(data.matrix, name, links(federation.id).client, data.published && data.published.round)]),
    ...(data.bank && data.bank.experts.length ? [expertsSection(data.bank, federation.plan.privacy.secure_sum)] : []),
    ...(data.packs.length ? [packsSection(data.packs)] : []), claimsSection((data.current || federation).claims), termsSection()];
}

const absent = (data, what) => [section("absent", `${what} is not here`, note([`${data.federation.name} does not have it. `, link("Show the federation", links(data.federation.id).home)]))];

async function details(data, kind, id, mine) {
  if (kind === "rounds") {
    const round = /^[0-9]{1,9}$/.test(id) ? await view(data.shown, data.path, Number(id)) : null;
    if (!round) return absent(data, `Round ${id}`);
    const matrix = round.state !== "published" || round.secure_sum ? null : data.matrix && data.matrix.round === round.round ? data.matrix : await fetchJson(`${data.path}/rounds/${round.round}/relevance`);
    const name = (client) => data.clientNames[client] || client;
    return [...roundSections(data, round), ...(matrix ? [relevanceSection(matrix, name, links(data.federation.id).client)] : []), claimsSection(round.claims), termsSection()];
  }
  const client = data.clients.find((c) => c.client_id === id);
  if (!client) return absent(data, `Client ${id}`);
  const numbers = data.rounds.slice(0, HISTORY).map((round) => round.round), views = [];
  const sections = () => [...clientSections(data, client, views, numbers.length), termsSection()];
  for (const number of numbers) {
    views.push(await view(data.shown, data.path, number));
    if (mine !== turn) break;
    if (at("view").getAttribute("aria-busy") === "true" && views.length % 5 === 0) show(sections());
  }
  return sections();
}

function show(sections) {
  at("loading").hidden = true;
  at("view").hidden = false;
  render(at("view"), sections);
}

function showChoice(chosen) {
  at("choice").hidden = known.federations.length === 0;
  const isOnly = (name) => known.federations.filter((f) => f.name === name).length === 1;
  const options = known.federations.map((f) => element("option", `${f.name} (${f.state}${isOnly(f.name) ? "" : `, ${f.id}`})`, { value: f.id }));
  if (options.length !== at("federation").children.length || options.some((option, i) => !option.isEqualNode(at("federation").children[i]))) at("federation").replaceChildren(...options);
  if (chosen && at("federation").value !== chosen) at("federation").value = chosen;
}

async function refresh() {
  const mine = ++turn, now = Date.now(), isIn = Boolean(token.get());
  at("entry").hidden = isIn;
  at("leave").hidden = !isIn;
  if (!isIn) {
    at("view").hidden = at("outage").hidden = at("loading").hidden = at("choice").hidden = true;
    at("updated").textContent = "";
    Object.assign(known, { federations: [], listedAt: 0, shown: null });
    return;
  }
  if (at("view").hidden) at("loading").hidden = false;
  running += 1;
  try {
    await loadFederations(now);
    const { fid, kind, id } = address(), chosen = fid || (known.federations.at(-1) || {}).id;
    const data = chosen ? await loadFederation(chosen, now) : null;
    if (mine !== turn) return;
    showChoice(chosen);
    const sections = !chosen
      ? [section("empty", "No federation yet", note(["Create one with ", element("code", "tessera federation create --name NAME --strategy fedmosaic --rounds 10"), "; this page shows it at once."], { id: "headline" }))]
      : !data ? [section("absent", `There is no federation ${chosen}`, note(["The link is wrong, or it belongs to another coordinator. ", link("Show the newest federation", "#")]))]
        : kind === "rounds" || kind === "clients" ? await details(data, kind, id, mine) : await overview(data);
    if (mine !== turn) return;
    show(sections);
    document.title = data ? `${data.federation.name}: ${at("headline") ? at("headline").textContent : "Tessera"}` : "Tessera";
    at("view").setAttribute("aria-busy", "false");
    at("outage").hidden = true;
    document.body.classList.remove("stale");
    answeredAt = now;
    if (data && !data.isComplete) loadEarlier(data.shown, data.path);
    at("updated").textContent = `as of ${new Date(now).toLocaleTimeString("en-GB")}`;
  } catch (error) {
    if (mine === turn) showTrouble(error);
  } finally {
    running -= 1;
  }
}

// A refused token brings the question back; anything else may pass, so what was shown stays, and its age with it.
function showTrouble(error) {
  if (error.status === 401 || error.status === 403) {
    token.forget();
    at("view").replaceChildren();
    at("view").setAttribute("aria-busy", "true");
    at("trouble").textContent = error.status === 401 ? "This token is unknown, expired or revoked. Enter another one." : "This token's role may not see federations. Enter one of an auditor, operator or admin.";
    refresh();
    at("token").focus();
    return;
  }
  at("loading").hidden = true;
  const since = answeredAt ? ` Shown is what was known ${span((Date.now() - answeredAt) / 1000)} ago.` : "";
  const what = error.status ? `The coordinator answers with an error: ${error.message}.` : error instanceof TypeError ? "The coordinator does not answer." : `The page failed: ${error.message}.`;
  at("outage").textContent = `${what}${since} Trying again every ${count(REFRESH_MS / 1000, "second")}.`;
  at("outage").hidden = false;
  document.body.classList.add("stale");
}

at("entry").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(at("token").value.trim());
  at("token").value = at("trouble").textContent = "";
  refresh();
});
at("leave").addEventListener("click", () => { token.forget(); at("view").replaceChildren(); at("view").setAttribute("aria-busy", "true"); refresh(); });
at("federation").addEventListener("change", () => { location.hash = `#/${at("federation").value}`; });
at("view").addEventListener("click", (event) => {
  const button = event.target.closest("button[data-metric]");
  if (button) { ui.metric = button.dataset.metric; refresh(); }
});
window.addEventListener("hashchange", () => {
  at("view").setAttribute("aria-busy", "true");
  window.scrollTo(0, 0);
  refresh();
});
document.addEventListener("visibilitychange", () => document.hidden || running || refresh());
refresh();
// A refresh in progress is not overtaken: with a slow coordinator none would ever come to its end.
setInterval(() => document.hidden || running || refresh(), REFRESH_MS);
