// Polls the API, and shows the view that the address names:
// #, #/FEDERATION, #/FEDERATION/rounds/N, #/FEDERATION/clients/CLIENT, #/FEDERATION/beside/FEDERATION or #/audit.
// The first one is the only federation, or the list of all.

import { actionsSection, askToEnrol, askToMove, askToRemove, askToRevoke, clientActions, mayAct } from "./page.actions.js";
import { all, fetchJson, roleIn, send, token } from "./page.api.js";
import { auditSections } from "./page.audit.js";
import { besideSection } from "./page.beside.js";
import { askToCreate } from "./page.create.js";
import { at, element, link, note, render, section } from "./page.dom.js";
import { comeBack, leaveFor, offer, provider, signInByLink, signOut } from "./page.signin.js";
import { count, span } from "./page.text.js";
import { clientSections, roundSections } from "./page.details.js";
import { curvesSection, isSmall } from "./page.curves.js";
import { expertsSection } from "./page.experts.js";
import { federationsSection, noFederation } from "./page.federations.js";
import { planSection } from "./page.plan.js";
import { historySection, relevanceSection } from "./page.relevance.js";
import { claimsSection, clientsSection, factsSection, headlineSection, helpSection, links, packsSection, roundsSection, termsSection } from "./page.views.js";

const REFRESH_MS = 3000, SELDOM_MS = 15000, PAGE = 100, HISTORY = 20; // HISTORY: the rounds of the first view, and of a client's
const CHANGING = 3; // so many of the newest rounds may still get updates or scores
const MATRICES = 6; // rounds whose relevance is shown side by side
const ui = { metric: "loss", history: false, curves: 0, chosen: [], acted: false }; // history: whether relevance of several rounds was asked for; curves: rounds of the curve per client; chosen: clients in front of it
const ACTIVE = 20; // so many running federations of the list are looked into
const known = { federations: [], listedAt: 0, strategies: null, details: new Map(), detailedAt: 0, shown: null }; // details: rounds and clients of running federations; shown: what is loaded of one federation
let turn = 0, running = 0, answeredAt = 0;

function address() {
  const [, fid, kind, id] = decodeURIComponent(location.hash).split("/");
  return { fid, kind, id };
}

async function loadFederations(now, mine) {
  if (now - known.listedAt < SELDOM_MS) return;
  // Federations are shown without their strategies' sentences where these cannot be loaded.
  const strategies = known.strategies || fetchJson("/v1/strategies").then(({ items }) => items, () => null);
  const loaded = { federations: await all("/v1/federations"), strategies: await strategies, listedAt: now };
  if (mine === turn) Object.assign(known, loaded); // an answer after a sign-out is another person's
}

// The current round and the clients of federations that run, as often as the list of all is loaded.
async function loadDetails() {
  if (known.detailedAt === known.listedAt) return;
  const at = known.listedAt, active = known.federations.filter((f) => ["running", "paused"].includes(f.state) && f.round).slice(-ACTIVE);
  const loaded = await Promise.all(active.map(async ({ id, round }) => {
    const path = `/v1/federations/${encodeURIComponent(id)}`;
    const [current, clients] = await Promise.all([fetchJson(`${path}/rounds/${round.number}`), all(`${path}/clients`)]);
    return [id, { current, clients }];
  }));
  Object.assign(known, { details: new Map(loaded), detailedAt: at });
}

async function list() {
  await loadDetails();
  return [federationsSection(known.federations, known.details)];
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
  const canList = mayAct(federation.id) && federation.state !== "finished";
  const [clients, tokens, packs, bank] = await Promise.all([all(`${path}/clients`), canList ? all(`${path}/enrolment-tokens`) : [], federation.plan.alignment ? fetchJson(`${path}/alignments`) : null,
    federation.plan.privacy.secure_sum ? fetchJson(`${path}/experts?limit=${PAGE}`) : null]);
  Object.assign(shown, { clients, tokens, packs: packs ? packs.items : [], bank, seldomAt: now, enrolled: federation.clients.enrolled });
}

async function loadFederation(fid, now) {
  const path = `/v1/federations/${encodeURIComponent(fid)}`, federation = await fetchJson(path);
  if (!federation) return null;
  if (!known.shown || known.shown.id !== fid) known.shown = { id: fid, rounds: [], earlier: null, views: new Map(), matrices: new Map(), clients: [], tokens: [], packs: [], bank: null, matrix: null, seldomAt: 0 };
  const { shown } = known; // another federation may be chosen meanwhile
  const before = shown.rounds;
  await Promise.all([loadRounds(shown, path), loadSeldom(shown, path, federation, now)]);
  forgetChanged(shown, before);
  const published = shown.rounds.find((round) => round.state === "published");
  if (published && !federation.plan.privacy.secure_sum && (!shown.matrix || shown.matrix.round !== published.round)) shown.matrix = await fetchJson(`${path}/rounds/${published.round}/relevance`);
  return { path, shown, federation, published, rounds: shown.rounds, isComplete: shown.earlier === null, clients: shown.clients, tokens: shown.tokens, packs: shown.packs, bank: shown.bank, matrix: shown.matrix,
    clientNames: Object.fromEntries(shown.clients.map((client) => [client.client_id, client.name])) };
}

// The relevance of the newest published rounds, the oldest first; a published one does not change.
async function matricesOf({ shown, path, federation, rounds }) {
  const published = ui.history && !federation.plan.privacy.secure_sum ? rounds.filter((round) => round.state === "published").slice(0, MATRICES) : [];
  await Promise.all(published.filter((round) => !shown.matrices.has(round.round)).map(async ({ round }) => {
    shown.matrices.set(round, await fetchJson(`${path}/rounds/${round}/relevance`));
  }));
  return published.map(({ round }) => shown.matrices.get(round)).filter(Boolean).reverse();
}

// The newest rounds with their clients, as many as were asked for; each is fetched once.
async function scoredViews({ shown, path, rounds }, mine) {
  const views = [];
  for (const { round } of rounds.filter((r) => r.scores).slice(0, ui.curves)) if (mine === turn) views.push(await view(shown, path, round));
  return views;
}

async function beside(data, fid) {
  const path = `/v1/federations/${encodeURIComponent(fid)}`, [federation, rounds] = await Promise.all([fetchJson(path), all(`${path}/rounds`)]);
  return federation ? [besideSection(data, { federation, rounds })] : absent(data, `Federation ${fid}`);
}

async function audit() {
  const { head } = await fetchJson("/v1/audit?limit=1"), after = head ? Math.max(0, head.number - PAGE) : 0;
  return auditSections(await fetchJson(`/v1/audit?limit=${PAGE}&after=${after}`));
}

// Act, and show at once what follows.
async function act(method, path, body) {
  const answer = await send(method, path, body);
  known.listedAt = 0;
  if (known.shown) known.shown.seldomAt = 0;
  ui.acted = true;
  refresh();
  return answer;
}

// A removed federation disappears at once, and not only when the coordinator has listed the others.
function leaveRemoved(fid) {
  known.federations = known.federations.filter(({ id }) => id !== fid);
  at("view").hidden = at("peers").hidden = true;
  at("loading").hidden = false;
  location.hash = "";
}

async function overview(data, mine) {
  const { path, rounds, federation, clientNames } = data;
  const published = rounds.filter((round) => round.scores && round.published_at);
  const scoredRounds = published.length ? published : rounds.filter((round) => round.scores);
  const [scored, start] = [scoredRounds[0], scoredRounds.at(-1)];
  const load = async (round) => (round ? view(data.shown, path, round.round) : null);
  const [current, shown, first] = await Promise.all([rounds[0], scored, data.isComplete ? start : null].map(load));
  Object.assign(data, { current, scored: shown, start: first });
  const name = (id) => clientNames[id] || id;
  const matrices = await matricesOf(data), actions = mayAct(federation.id) ? actionsSection(federation) : null;
  const hasCurves = shown && !federation.plan.privacy.secure_sum && federation.clients.enrolled > 1, views = hasCurves ? await scoredViews(data, mine) : [];
  const plan = planSection(federation, known.strategies || []), hasEarlier = ui.curves < rounds.filter((round) => round.scores).length;
  return [headlineSection(data), ...(actions ? [actions] : []), factsSection(data), ...(rounds.length ? [helpSection(data, ui, isSmall(views, ui.metric) ? views : [])] : [plan]),
    ...(hasCurves ? [curvesSection(views, ui.metric, name, ui.chosen, links(federation.id).client, hasEarlier)] : []), clientsSection(data), roundsSection(data),
    ...(federation.plan.privacy.secure_sum ? [] : [relevanceSection(data.matrix, name, links(federation.id).client, data.published && data.published.round)]),
    ...(data.matrix && data.published.round > 1 ? [historySection(matrices, name)] : []),
    ...(data.bank && data.bank.experts.length ? [expertsSection(data.bank, federation.plan.privacy.secure_sum)] : []),
    ...(data.packs.length ? [packsSection(data.packs)] : []), ...(rounds.length ? [plan] : []), claimsSection((data.current || federation).claims), termsSection()];
}

const absent = (data, what) => [section("absent", `${what} does not exist`, note([`The link is wrong, or the entry belongs to another federation than ${data.federation.name}. `, link("Show the federation", links(data.federation.id).home)]))];

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
  const actions = clientActions(client, data.federation.id);
  const sections = () => [...clientSections(data, client, views, numbers.length), ...(actions ? [actions] : []), termsSection()];
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
  // The button that opened the dialog may be gone, and with it the place of a keyboard's user.
  if (ui.acted && !at("dialog").open && document.activeElement === document.body) {
    const places = ["#actions-part button", "#back a", "#home"].map((place) => document.querySelector(place));
    places.find(Boolean).focus({ preventScroll: true });
  }
  if (!at("dialog").open) ui.acted = false;
}

function showChoice(chosen, isAudit) {
  at("choice").hidden = known.federations.length === 0 || isAudit;
  const isOnly = (name) => known.federations.filter((f) => f.name === name).length === 1;
  const options = [...(known.federations.length > 1 ? [element("option", `All ${known.federations.length}`, { value: "" })] : []),
    ...known.federations.map((f) => element("option", `${f.name} (${f.state}${isOnly(f.name) ? "" : `, ${f.id}`})`, { value: f.id }))];
  if (options.length !== at("federation").children.length || options.some((option, i) => !option.isEqualNode(at("federation").children[i]))) at("federation").replaceChildren(...options);
  if (at("federation").value !== (chosen || "")) at("federation").value = chosen || "";
  const { kind, id } = address(), peers = known.federations.filter((f) => f.id !== chosen);
  at("peers").hidden = peers.length === 0 || !chosen;
  const choices = [element("option", "none", { value: "" }), ...peers.map((f) => element("option", f.name, { value: f.id }))];
  if (choices.length !== at("beside").children.length || choices.some((option, i) => !option.isEqualNode(at("beside").children[i]))) at("beside").replaceChildren(...choices);
  at("beside").value = kind === "beside" ? id : "";
}

async function refresh() {
  const mine = ++turn, now = Date.now(), isIn = Boolean(token.get());
  at("entry").hidden = isIn;
  at("leave").hidden = !isIn;
  at("audit-link").hidden = roleIn() === null;
  at("create").hidden = !mayAct();
  if (!isIn) {
    at("view").hidden = at("outage").hidden = at("loading").hidden = at("choice").hidden = at("peers").hidden = true;
    at("updated").textContent = "";
    Object.assign(known, { federations: [], listedAt: 0, strategies: null, shown: null });
    return;
  }
  if (at("view").hidden) at("loading").hidden = false;
  running += 1;
  try {
    await loadFederations(now, mine);
    if (mine !== turn) return;
    const { fid, kind, id } = address(), isAudit = fid === "audit", only = known.federations.length === 1 ? known.federations[0].id : undefined;
    const chosen = isAudit ? undefined : fid || only, data = chosen ? await loadFederation(chosen, now) : null;
    if (mine !== turn) return;
    showChoice(chosen, isAudit);
    known.federation = data && data.federation;
    known.client = data && kind === "clients" ? data.clients.find((client) => client.client_id === id) : null;
    const sections = isAudit ? await audit() : !chosen ? known.federations.length ? await list() : [noFederation()]
      : !data ? [section("absent", `There is no federation ${chosen}`, note(["The link is wrong, or it belongs to another coordinator. ", link("Show all federations", "#")]))]
        : kind === "beside" ? await beside(data, id) : kind === "rounds" || kind === "clients" ? await details(data, kind, id, mine) : await overview(data, mine);
    if (mine !== turn) return;
    show(sections);
    document.title = data ? `${data.federation.name}: ${at("headline") ? at("headline").textContent : "Tessera"}` : isAudit ? "Audit log: Tessera" : "Tessera";
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

// Show the view, or without a token the form that asks for it, with what went wrong.
function startAgain(trouble) {
  at("view").replaceChildren(); at("view").setAttribute("aria-busy", "true");
  at("trouble").textContent = trouble;
  refresh(); offer();
}

// A refused token brings the question back; anything else may pass, so what was shown stays, and its age with it.
// Whoever may list federations may be refused another one, by its link, and stays signed in.
function showTrouble(error) {
  if (error.status === 401 || (error.status === 403 && !known.federations.length)) {
    token.forget();
    startAgain(error.status === 401 ? "This token is unknown, expired or revoked. Enter another token." : "The role of this token does not allow this view. Enter a token of an auditor, operator or admin.");
    at("token").focus();
    return;
  }
  at("loading").hidden = true;
  const since = answeredAt ? ` The page shows the state of ${span((Date.now() - answeredAt) / 1000)} ago.` : "";
  const what = error.status === 403 ? "Your role does not allow this view; choose a federation above." : error.status ? `The coordinator answers with an error: ${error.message}.` : error instanceof TypeError ? "The coordinator does not answer." : `The page failed: ${error.message}.`;
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
at("leave").addEventListener("click", async () => { const ended = signOut(); startAgain(""); at("trouble").textContent = await ended; });
at("federation").addEventListener("change", () => { location.hash = at("federation").value && `#/${at("federation").value}`; });
at("beside").addEventListener("change", () => { location.hash = `#/${at("federation").value}${at("beside").value && `/beside/${at("beside").value}`}`; });
at("view").addEventListener("click", (event) => {
  const { metric, action, curve } = (event.target.closest("button[data-metric], button[data-action], button[data-curve]") || { dataset: {} }).dataset;
  const post = (path, body) => act("POST", path, body);
  const asked = metric ? { metric } : action === "history" ? { history: true } : action === "curves" ? { curves: ui.curves + HISTORY }
    : curve ? { chosen: ui.chosen.includes(curve) ? ui.chosen.filter((id) => id !== curve) : [...ui.chosen, curve] } : null;
  if (asked) { Object.assign(ui, asked); refresh(); }
  else if (action === "remove") askToRemove((path) => act("DELETE", path), known.federation, leaveRemoved);
  else if (action === "enrol") askToEnrol(post, known.federation, known.shown.tokens);
  else if (action === "revoke") askToRevoke((path) => act("DELETE", path), known.federation, known.client);
  else if (action) askToMove(post, known.federation, action);
});
at("create").addEventListener("click", async () => {
  try {
    known.strategies ??= (await fetchJson("/v1/strategies")).items; // the list may not be there yet
  } catch (error) {
    showTrouble(error);
    return;
  }
  askToCreate((path, body) => act("POST", path, body), (fid) => { location.hash = `#/${fid}`; }, known.strategies);
});
at("dialog").addEventListener("close", () => at("dialog").replaceChildren()); // a token that was shown is gone
window.addEventListener("hashchange", () => {
  if (signInByLink()) known.listedAt = 0;
  at("view").setAttribute("aria-busy", "true");
  window.scrollTo(0, 0);
  refresh();
});
at("organisation").addEventListener("click", async () => {
  const there = await provider();
  if (there) leaveFor(there);
  else at("trouble").textContent = "The identity provider does not answer. Try again, or enter a token.";
});
// Charts are drawn for the window's width.
let resized = 0;
window.addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(() => running || refresh(), 200); });
document.addEventListener("visibilitychange", () => document.hidden || running || refresh());
signInByLink();
comeBack().then(startAgain);
// A refresh in progress is not overtaken: with a slow coordinator none would ever come to its end.
setInterval(() => document.hidden || running || refresh(), REFRESH_MS);
