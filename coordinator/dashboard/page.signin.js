// Sign in at the identity provider that the coordinator knows: an authorization code with PKCE (RFC 7636). The coordinator
// exchanges the code; secret, state and nonce of a request stay in this tab. Signing out ends the sign-in at the coordinator.

import { ROOT, fetchJson, send, token } from "./page.api.js";
import { at } from "./page.dom.js";

const KEY = `sign-in${ROOT}`, REDIRECT = `${location.origin}${ROOT}/`;

const base64url = (bytes) => btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
const random = () => base64url(crypto.getRandomValues(new Uint8Array(48)));

// The provider, or null if there is none or it does not answer.
export const provider = () => fetchJson("/v1/sign-in").catch(() => null);

// Offer the provider to people without a token.
export async function offer() {
  at("organisation").hidden = Boolean(token.get()) || !(await provider());
}

// Delete the token in this tab, and end a sign-in for every copy of it. Returns an error message, or null.
export async function signOut() {
  const ended = token.isOfProvider() ? send("DELETE", "/v1/sign-in") : null; // its header is written before the token is forgotten
  token.forget();
  try {
    await ended;
    return null;
  } catch (error) {
    return error.status === 401 ? null : "This tab has deleted the token, but the coordinator did not confirm the sign-out: the token is valid until it expires.";
  }
}

// Take the token of an address #token=TOKEN, and remove it from the address and from the tab's history. A browser sends no
// fragment, so the token is in no log and in no other site's view. Returns whether there was one.
export function signInByLink() {
  const [, value] = /^#token=([^/]+)$/.exec(location.hash) || [];
  if (!value) return false;
  history.replaceState(null, "", `${ROOT}/`);
  if (token.get()) return false; // a link does not replace the person who is signed in
  token.set(value);
  return true;
}

export async function leaveFor({ authorization_endpoint: endpoint, client_id: client, scope }) {
  const request = { state: random(), nonce: random(), verifier: random(), hash: location.hash };
  sessionStorage.setItem(KEY, JSON.stringify(request));
  const challenge = base64url(new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(request.verifier))));
  const url = new URL(endpoint);
  for (const [name, value] of Object.entries({ response_type: "code", client_id: client, redirect_uri: REDIRECT, scope, state: request.state, nonce: request.nonce,
    code_challenge: challenge, code_challenge_method: "S256" })) url.searchParams.set(name, value);
  location.assign(url);
}

// Redeem the code in the address to which the provider returned the browser. Returns an error message, or null.
export async function comeBack() {
  const query = new URLSearchParams(location.search), request = JSON.parse(sessionStorage.getItem(KEY) || "null");
  if (!query.has("state")) return null;
  sessionStorage.removeItem(KEY);
  history.replaceState(null, "", `${REDIRECT}${request ? request.hash : ""}`);
  if (!request || query.get("state") !== request.state) return "This sign-in did not begin in this tab. Sign in again.";
  if (!query.has("code")) return `The provider refused the sign-in: ${query.get("error_description") || query.get("error")}.`;
  try {
    const person = await send("POST", "/v1/sign-in", { code: query.get("code"), code_verifier: request.verifier, redirect_uri: REDIRECT, nonce: request.nonce });
    token.set(person.token, { role: person.role, federations: person.federations });
    return null;
  } catch (error) {
    return error.status === 401 ? "The coordinator did not accept the provider's answer. Sign in again." : error.message;
  }
}
