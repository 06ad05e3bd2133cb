// Requests to the server: relative addresses, bounded waits, errors with the server's own words.

const BASE = new URL("../api/v1/", document.baseURI.replace(/#.*$/, ""));
const WAIT = 15_000;
/** What another process of the server works out; it takes as long as the server lets it. */
const ASKED = /\/api\/v1\/(explain|at|between|branches|plan|what-if)\b/;
let answerWait = 130_000;
let token = sessionStorage.getItem("belay.token") ?? "";

/** The server refused, or could not be reached (status 0). */
export class ApiError extends Error {
  /** `login`: whether the server signs people in. */
  constructor(readonly status: number, message: string, readonly login = false) {
    super(message);
  }
}

/** The token of this tab, as `Authorization: Bearer`; it is kept until the tab closes. */
export function useToken(value: string): void {
  token = value.trim();
  if (token) sessionStorage.setItem("belay.token", token);
  else sessionStorage.removeItem("belay.token");
}

/** Whether this tab sends a token: then a link, which cannot send one, leads to no answer. */
export function hasToken(): boolean {
  return token !== "";
}

export function headers(more: Record<string, string> = {}): Record<string, string> {
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

export function address(path: string, query: Readonly<Record<string, string | number | null | undefined>> = {}): string {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries(query))
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, String(value));
  return url.href;
}

/** A JSON answer. Raises ApiError. */
export async function get<T>(
  path: string,
  query: Readonly<Record<string, string | number | null | undefined>> = {},
  options: { signal?: AbortSignal; cache?: RequestCache } = {},
): Promise<T> {
  return request<T>(address(path, query), { method: "GET", ...options });
}

/** A JSON answer to a JSON body. Raises ApiError. */
export async function post<T>(path: string, body: unknown, options: { signal?: AbortSignal } = {}): Promise<T> {
  return request<T>(address(path), { method: "POST", body: JSON.stringify(body), ...options });
}

/** The server says for how many seconds it seeks an answer; its own words at that limit come a little later. */
export function seekFor(seconds: number): void {
  if (seconds > 0) answerWait = (seconds + 10) * 1000;
}

async function request<T>(url: string, init: RequestInit): Promise<T> {
  const wait = ASKED.test(new URL(url).pathname) ? answerWait : WAIT;
  const limit = AbortSignal.timeout(wait);
  const signal = init.signal ? AbortSignal.any([init.signal, limit]) : limit;
  let answer: Response;
  try {
    const more: Record<string, string> = init.body === undefined ? {} : { "Content-Type": "application/json" };
    answer = await fetch(url, { ...init, signal, headers: headers(more), credentials: "same-origin" });
    if (answer.ok) return (await answer.json()) as T;
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new ApiError(0, limit.aborted ? `no answer within ${wait / 1000} s` : error instanceof Error ? error.message : String(error));
  }
  throw await refusal(answer);
}

/** Where the server signs a person in, and leads back to what this page shows. */
export function signInAddress(): string {
  return address("../../login", { to: location.hash });
}

/** Ends the session of a person who signed in. Raises ApiError. */
export async function signOut(): Promise<void> {
  const answer = await fetch(address("../../logout"), { method: "POST", credentials: "same-origin" });
  if (!answer.ok) throw await refusal(answer);
}

async function refusal(answer: Response): Promise<ApiError> {
  const text = (await answer.text().catch(() => "")).slice(0, 2000).trim();
  try {
    const parsed = JSON.parse(text) as { error?: unknown; message?: unknown; login?: unknown };
    const said = parsed.error ?? parsed.message;
    if (typeof said === "string") return new ApiError(answer.status, said, parsed.login === true);
  } catch {
    // not JSON: the text is the reason
  }
  return new ApiError(answer.status, text && !text.startsWith("<") ? text : `${answer.status} ${answer.statusText}`.trim());
}
