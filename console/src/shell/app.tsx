// The page around the views: heading, navigation, connection, keys, banners.
import { Component, type ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { type MessageKey, t } from "../messages";
import { hasToken, signInAddress, signOut } from "../store/api";
import { type Connection, retryNow, signIn, useStore } from "../store/store";
import type { Cluster } from "../types";
import { VIEWS } from "../views";
import { TimeBar } from "../time/bar";
import { useKeys } from "./keys";
import { Command } from "./parts";
import { go, hrefOf, usePlace } from "./place";
import { language, prefer, type Spoken, type Theme, type Times, usePreferences } from "./preferences";
import { absolute, duration, useNow } from "./times";

const LANGUAGES: readonly Spoken[] = ["auto", "en", "zh"];
const THEMES: readonly Theme[] = ["auto", "light", "dark"];
const TIMES: readonly Times[] = ["relative", "absolute"];

export function App() {
  const here = usePlace();
  const cluster = useStore((state) => state.cluster);
  const connection = useStore((state) => state.connection);
  const view = VIEWS.find((one) => one.id === here.view);
  const [help, setHelp] = useState(false);
  const { theme, language: spoken } = usePreferences();
  useEffect(() => {
    document.title = `${view ? t(view.title) : here.view} · ${t("shell.name")}`;
  }, [here.view, spoken]);
  const main = useRef<HTMLElement>(null);
  useLayoutEffect(() => {
    // another view begins at its top, not as far down as the one before was read
    if (main.current) main.current.scrollTop = 0;
  }, [here.view]);
  const views = Object.fromEntries(VIEWS.map((one, index) => [String(index + 1), () => go({ view: one.id })]));
  useKeys({
    ...views,
    "?": () => setHelp(true),
    t: () => prefer({ theme: THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]! }),
    Escape: () => here.select && go({ select: "" }),
  });
  return (
    <div class="page" key={language()}>
      <a class="skip" href="#view" onClick={(event) => { event.preventDefault(); document.getElementById("view")?.focus(); }}>{t("shell.skip")}</a>
      <Head cluster={cluster} view={here.view} connection={connection} help={() => setHelp(true)} />
      <Banners cluster={cluster} connection={connection} />
      <main ref={main} id="view" tabIndex={-1} aria-busy={!cluster} data-moment={cluster?.moment.id}>
        {connection.kind === "refused" ? <Refused status={connection.status} reason={connection.reason} login={connection.login} />
          : !view ? <p class="message">{t("shell.unknownView", { view: here.view.slice(0, 80) })} <a href={hrefOf({ view: "overview" })}>{t("shell.toOverview")}</a></p>
          : !cluster ? <p class="message dim" role="status">{t("shell.reading")}</p>
          : <Fence key={here.view}><view.component cluster={cluster} /></Fence>}
      </main>
      {cluster ? <TimeBar /> : null}
      <Help open={help} close={() => setHelp(false)} />
    </div>
  );
}

function Head({ cluster, view, connection, help }: { cluster: Cluster | null; view: string; connection: Connection; help: () => void }) {
  const { theme, times, language: spoken } = usePreferences();
  const nav = useRef<HTMLElement>(null);
  useEffect(() => {
    // on a narrow screen the names of the views are wider than it
    nav.current?.querySelector("[aria-current]")?.scrollIntoView({ inline: "nearest", block: "nearest" });
  }, [view]);
  return (
    <header>
      <h1>{t("shell.name")}</h1>
      <nav ref={nav} aria-label={t("shell.views")}>
        {VIEWS.map((one) => (
          <a href={hrefOf({ view: one.id, params: {} })} aria-current={one.id === view ? "page" : undefined}>{t(one.title)}</a>
        ))}
      </nav>
      <p class="where">
        {cluster ? <span class="minor">{t("shell.shard", { name: cluster.moment.shard })}</span> : null}
        {cluster ? <span class="minor"><RevisionText id={cluster.moment.revision} /></span> : null}
        <ConnectionState connection={connection} />
        <SignedIn />
      </p>
      <div class="choices">
        <Choice label={t("shell.times")} value={times} values={TIMES} name="shell.times" choose={(value) => prefer({ times: value })} />
        <Choice label={t("shell.language")} value={spoken} values={LANGUAGES} name="shell.language" choose={(value) => prefer({ language: value })} />
        <Choice label={t("shell.theme")} value={theme} values={THEMES} name="shell.theme" choose={(value) => prefer({ theme: value })} />
        <button type="button" onClick={help} aria-keyshortcuts="?">{t("shell.help")}</button>
      </div>
    </header>
  );
}

function Choice<T extends string>(props: { label: string; value: T; values: readonly T[]; name: "shell.language" | "shell.theme" | "shell.times"; choose: (value: T) => void }) {
  return (
    <select aria-label={props.label} title={props.label} value={props.value} onChange={(event) => props.choose(event.currentTarget.value as T)}>
      {props.values.map((value) => <option value={value}>{t(`${props.name}.${value}` as MessageKey)}</option>)}
    </select>
  );
}

function RevisionText({ id }: { id: string }) {
  return id ? <span title={id}>{t("shell.revision", { id: id.slice(0, 10) })}</span> : <>{t("shell.revisionNone")}</>;
}

function ConnectionState({ connection }: { connection: Connection }) {
  const past = useStore((state) => state.at !== "");
  if (past && connection.kind === "live") return <span class="connection past" role="status"><span class="lamp" aria-hidden="true" /> {t("time.past")}</span>;
  return (
    <span class={`connection ${connection.kind}`} role="status">
      <span class="lamp" aria-hidden="true" /> {t(`connection.${connection.kind}`)}
    </span>
  );
}

function Banners({ cluster, connection }: { cluster: Cluster | null; connection: Connection }) {
  const at = useStore((state) => state.at);
  const problem = useStore((state) => state.problem);
  useNow(); // the wait counts down
  return (
    <>
      {connection.kind === "lost" ? (
        <div class="banner bad" role="alert">
          <span>{t("connection.banner", {
            duration: duration(Math.max(0, Date.now() - connection.since) / 1000), reason: connection.reason,
            time: cluster ? absolute(cluster.moment.time) : "–",
          })} <span aria-hidden="true">{t("connection.retryIn", { duration: duration(Math.max(0, Math.round((connection.retryAt - Date.now()) / 1000))) })}</span></span>
          <button type="button" onClick={retryNow}>{t("connection.retry")}</button>
        </div>
      ) : null}
      {at && !problem && cluster ? (
        <div class="banner past" role="status">
          <span>{t("connection.past", { time: absolute(cluster.moment.time) })}</span>
          <button type="button" onClick={() => go({ at: "" })}>{t("connection.toPresent")}</button>
        </div>
      ) : null}
      {at && problem ? <div class="banner bad" role="alert"><span>{t("connection.pastProblem", { reason: problem })}</span></div> : null}
      {cluster?.problems.length ? (
        <details class="banner warn">
          <summary>{t("shell.problems", { count: cluster.problems.length })}</summary>
          <ul>{cluster.problems.slice(0, 50).map((one) => <li>{one}</li>)}</ul>
        </details>
      ) : null}
    </>
  );
}

/** Who signed in, and the way out. */
function SignedIn() {
  const viewer = useStore((state) => state.viewer);
  if (!viewer?.role) return null;
  const leave = (): void => void signOut().then(() => location.reload(), () => location.reload());
  return <><span class="minor" title={t(`shell.role.${viewer.role}`)}>{viewer.user}</span><button type="button" onClick={leave}>{t("shell.signOut")}</button></>;
}

function Refused({ status, reason, login }: { status: number; reason: string; login: boolean }) {
  const [token, setToken] = useState("");
  return (
    <form class="refused" onSubmit={(event) => { event.preventDefault(); signIn(token); }}>
      <h2>{t("connection.refused.title")}</h2>
      <p>{t("connection.refused.text", { reason: reason || String(status) })}</p>
      {login ? <p><a class="sign-in" href={signInAddress()}>{t("connection.signInHere")}</a></p> : null}
      <p class="dim">{t("connection.refused.how")}</p>
      <Command text="kubectl create token ACCOUNT -n belay-system" />
      <label>{t("connection.token")} <input type="password" autocomplete="off" spellcheck={false} value={token} onInput={(event) => setToken(event.currentTarget.value)} /></label>
      <button type="submit" disabled={!token.trim()}>{t("connection.signIn")}</button>
    </form>
  );
}

const KEYS: readonly (readonly [string, MessageKey])[] = [
  ["1 … 8", "keys.views"], [", .", "keys.moments"], ["< >", "keys.faults"], ["Space", "keys.play"], ["n", "keys.present"],
  ["Esc", "keys.escape"], ["t", "keys.theme"], ["u", "keys.undo"], ["?", "keys.help"],
];
const MAP_KEYS: readonly (readonly [string, MessageKey])[] = [
  ["← → ↑ ↓", "keys.map.arrows"], ["PgUp PgDn", "keys.map.nodes"], ["] [", "keys.map.trouble"], ["Enter", "keys.map.select"],
  ["+ − 0 z", "keys.map.zoom"],
];

function Help({ open, close }: { open: boolean; close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (open && !dialog.current?.open) dialog.current?.showModal();
    else if (!open) dialog.current?.close();
  }, [open]);
  const rows = (keys: typeof KEYS) => keys.map(([key, text]) => <><dt><kbd>{key}</kbd></dt><dd>{t(text)}</dd></>);
  return (
    <dialog ref={dialog} onClose={close} aria-label={t("keys.title")}>
      <h2>{t("keys.title")}</h2>
      <dl class="keys">{rows(KEYS)}</dl>
      <h3>{t("keys.map")}</h3>
      <dl class="keys">{rows(MAP_KEYS)}</dl>
      <p><button type="button" onClick={close}>{t("shell.close")}</button>{hasToken() ? null : <>{" "}<a href="../plain">{t("shell.plain")}</a></>}</p>
    </dialog>
  );
}

/** A view that fails says so and takes nothing else with it. */
class Fence extends Component<{ children?: ComponentChildren }, { error: string }> {
  override state = { error: "" };

  override componentDidCatch(error: unknown): void {
    this.setState({ error: error instanceof Error ? error.message : String(error) });
  }

  override render() {
    if (!this.state.error) return this.props.children;
    return (
      <p class="message problem" role="alert">
        {t("shell.crashed", { reason: this.state.error })} <button type="button" onClick={() => this.setState({ error: "" })}>{t("shell.again")}</button>
      </p>
    );
  }
}
