// What Belay's status ConfigMaps say (docs/status.md). Whatever a person broke by hand counts as empty.

export const NAMESPACE = 'belay-system';
/** Selects the ConfigMaps that are read here: not the map of all chips, which is large. */
export const SELECTOR = 'belay.dev/about in (sync,pool,job)';

export interface StatusMap {
  metadata: { name: string };
  data?: Record<string, string>;
}

export interface Condition {
  type: string;
  status: string;
  reason: string;
  message: string;
}

export interface JobStatus {
  namespace: string;
  kind: string;
  name: string;
  phase: string;
  queue: string;
  chips: number;
  since: string;
  reason: string;
  message: string;
  wayOut: string;
  /** Nodes by pod. */
  pods: Record<string, { node: string; chips: string[] }>;
  history: Happened[];
}

export interface Happened {
  time: string;
  what: string;
}

export interface NodeStatus {
  node: string;
  pool: string;
  state: string;
  level: string;
  codes: string[];
  /** What holds it, from the findings. */
  why: string;
}

export interface ChipStatus extends Omit<NodeStatus, 'pool' | 'why'> {
  chip: string;
  usedBy: string;
  history: Happened[];
}

export interface Status {
  attempted: string;
  applied: string;
  ready: Condition | null;
  /** Nodes by state. */
  counts: Record<string, number>;
  /** Those that are not healthy. */
  nodes: NodeStatus[];
  chips: ChipStatus[];
  jobs: JobStatus[];
  waiting: JobStatus[];
  findings: string[];
  held: string[];
}

type Row = Record<string, unknown>;

export function readStatus(maps: readonly StatusMap[]): Status {
  const of = (prefix: string) => maps.filter(one => one.metadata.name.startsWith(prefix));
  const sync = maps.find(one => one.metadata.name === 'belay-sync')?.data ?? {};
  const diagnostics = rows(sync['diagnostics.json']);
  const jobs = of('belay-job-').map(readJob);
  const status: Status = {
    attempted: sync['attemptedRevision'] ?? '',
    applied: sync['appliedRevision'] ?? '',
    ready: rows(sync['conditions.json']).map(readCondition).find(one => one.type === 'Ready') ?? null,
    counts: {},
    nodes: [],
    chips: [],
    jobs,
    waiting: jobs.filter(one => one.reason || one.phase === 'Pending').sort((a, b) => a.since.localeCompare(b.since)),
    findings: diagnostics.filter(one => one['severity'] !== 'info').map(findingText),
    held: rows(sync['deferred.json']).map(one => [text(one['what']), text(one['budget'])].filter(Boolean).join(': ')),
  };

  const why = new Map(diagnostics.map(one => [text(one['object']), text(one['message'])]));
  for (const { data = {} } of of('belay-pool-')) {
    for (const [state, count] of Object.entries(record(parsed(data['nodes']))))
      status.counts[state] = (status.counts[state] ?? 0) + (typeof count === 'number' ? count : 0);
    for (const one of rows(data['nodes.json']))
      status.nodes.push({ ...place(one), pool: text(one['pool']), why: why.get(`Node/${text(one['node'])}`) ?? '' });
    for (const one of rows(data['chips.json']))
      status.chips.push({ ...place(one), chip: text(one['chip']), usedBy: text(one['usedBy']), history: happened(one['history']) });
  }
  return status;
}

/** What Belay says about a node: its own state, and its chips that are not healthy. */
export function aboutNode(status: Status, name: string): { node: NodeStatus | null; chips: ChipStatus[]; jobs: JobStatus[] } {
  return {
    node: status.nodes.find(one => one.node === name) ?? null,
    chips: status.chips.filter(one => one.node === name),
    jobs: status.jobs.filter(job => Object.values(job.pods).some(pod => pod.node === name)),
  };
}

/** The job of a pod: by its placement, else by the names of its owners. */
export function jobOfPod(status: Status, namespace: string, pod: string, owners: readonly string[]): JobStatus | null {
  const near = status.jobs.filter(job => job.namespace === namespace);
  return near.find(job => pod in job.pods) ?? near.find(job => owners.includes(job.name)) ?? null;
}

/** The address of a place in the console; "" where no address of a console is set. */
export function consoleLink(site: string, view: string, select = ''): string {
  let base: URL;
  try {
    base = new URL(site);
  } catch {
    return '';
  }
  if (base.protocol !== 'https:' && base.protocol !== 'http:') return '';
  const path = base.pathname.replace(/\/(console\/?)?$/, '');
  return `${base.origin}${path}/console/#/${view}${select ? `?select=${encodeURI(select)}` : ''}`;
}

function readJob(map: StatusMap): JobStatus {
  const data = map.data ?? {};
  const status = record(parsed(data['status.json']));
  const [namespace = '', kind = '', name = ''] = (data['job'] ?? '').split('/');
  const pending = record(status['pending']);
  const pods: JobStatus['pods'] = {};
  for (const [pod, where] of Object.entries(record(status['placement'])))
    pods[pod] = { node: text(record(where)['node']), chips: texts(record(where)['chips']) };
  const requests = Object.values(record(status['requests'])).filter((one): one is number => typeof one === 'number');
  return {
    namespace, kind, name, pods,
    phase: data['phase'] ?? '',
    queue: text(status['queue']),
    chips: requests.reduce((sum, one) => sum + one, 0),
    since: text(status['since']),
    reason: text(pending['reason']),
    message: text(pending['message']),
    wayOut: text(pending['unblock']),
    history: happened(status['history']),
  };
}

function readCondition(one: Row): Condition {
  return { type: text(one['type']), status: text(one['status']), reason: text(one['reason']), message: text(one['message']) };
}

function findingText(one: Row): string {
  const where = text(one['file']) ? `${text(one['file'])}:${Number(one['line'])}:${Number(one['column'])}` : text(one['object']);
  return `${where} ${text(one['message'])}`;
}

function place(one: Row): { node: string; state: string; level: string; codes: string[] } {
  return { node: text(one['node']), state: text(one['state']), level: text(one['level']), codes: texts(one['codes']) };
}

function happened(value: unknown): Happened[] {
  return list(value).map(one => ({ time: text(one['time']), what: text(one['what']) }));
}

function parsed(value: string | undefined): unknown {
  try {
    return JSON.parse(value ?? 'null');
  } catch {
    return null;
  }
}

function rows(value: string | undefined): Row[] {
  return list(parsed(value));
}

function list(value: unknown): Row[] {
  return Array.isArray(value) ? value.map(record) : [];
}

function record(value: unknown): Row {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Row) : {};
}

function text(value: unknown): string {
  return typeof value === 'string' ? value : '';
}

function texts(value: unknown): string[] {
  return Array.isArray(value) ? value.filter((one): one is string => typeof one === 'string') : [];
}
