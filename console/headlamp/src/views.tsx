// What Headlamp shows of Belay, given what the status says.
import { Link, NameValueTable, SectionBox, SimpleTable, StatusLabel } from '@kinvolk/headlamp-plugin/lib/CommonComponents';
import { aboutNode, consoleLink, jobOfPod, type JobStatus, type Status } from './status';

export interface IsolationRow {
  name: string;
  holds: string;
  reason: string;
  until: string;
}

/** An Isolation as the table shows it. */
export function isolationRow(object: any): IsolationRow {
  const spec = object?.spec ?? {};
  const chips = Array.isArray(spec.chips) ? spec.chips.map((one: any) => `${one?.node}/${[one?.chips].flat().join(',')}`) : [];
  return {
    name: String(object?.metadata?.name ?? ''),
    holds: [...(Array.isArray(spec.nodes) ? spec.nodes : []), ...chips].join(', ') || JSON.stringify(spec.selector ?? ''),
    reason: String(spec.reason ?? ''),
    until: String(spec.until ?? ''),
  };
}

export function Overview({ status, isolations, site }: { status: Status; isolations: readonly IsolationRow[]; site: string }) {
  const { ready } = status;
  const total = Object.values(status.counts).reduce((sum, one) => sum + one, 0);
  return (
    <>
      <SectionBox title="Belay">
        <NameValueTable
          rows={[
            { name: 'In force', value: status.applied.slice(0, 10) || 'nothing yet' },
            { name: 'Newest commit', value: status.attempted.slice(0, 10), hide: status.attempted === status.applied },
            {
              name: 'Ready',
              value: <StatusLabel status={ready?.status === 'True' ? 'success' : 'error'}>{ready ? `${ready.reason} ${ready.message}` : 'Belay has not written its status'}</StatusLabel>,
            },
            { name: 'Nodes', value: `${status.counts['healthy'] ?? 0} of ${total} healthy` },
            { name: 'Waiting jobs', value: String(status.waiting.length) },
            { name: 'Held back', value: status.held.join('; '), hide: !status.held.length },
            { name: 'Findings', value: status.findings.join('; '), hide: !status.findings.length },
            { name: 'Console', value: <ConsoleLink site={site} view="overview" />, hide: !consoleLink(site, 'overview') },
          ]}
        />
      </SectionBox>
      <SectionBox title="Waiting jobs">
        <SimpleTable
          data={status.waiting}
          emptyMessage="No job waits."
          columns={[
            { label: 'Job', getter: (job: JobStatus) => `${job.namespace}/${job.name}` },
            { label: 'Queue', datum: 'queue' },
            { label: 'Chips', datum: 'chips' },
            { label: 'Since', datum: 'since' },
            { label: 'Reason', datum: 'reason' },
            { label: 'Message', datum: 'message' },
            { label: 'Way out', datum: 'wayOut' },
          ]}
        />
      </SectionBox>
      <SectionBox title="Nodes that are not healthy">
        <SimpleTable
          data={status.nodes}
          emptyMessage="Every node is healthy."
          columns={[
            { label: 'Node', getter: one => <Link routeName="node" params={{ name: one.node }}>{one.node}</Link> },
            { label: 'Pool', datum: 'pool' },
            { label: 'State', datum: 'state' },
            { label: 'Level', datum: 'level' },
            { label: 'Why', getter: one => [one.codes.join(', '), one.why].filter(Boolean).join(' ') },
          ]}
        />
      </SectionBox>
      <SectionBox title="Chips that are not healthy">
        <SimpleTable
          data={status.chips}
          emptyMessage="Every chip is healthy."
          columns={[
            { label: 'Node', getter: one => <Link routeName="node" params={{ name: one.node }}>{one.node}</Link> },
            { label: 'Chip', datum: 'chip' },
            { label: 'State', datum: 'state' },
            { label: 'Level', datum: 'level' },
            { label: 'Codes', getter: one => one.codes.join(', ') },
            { label: 'Used by', datum: 'usedBy' },
          ]}
        />
      </SectionBox>
      <SectionBox title="Isolations">
        <SimpleTable
          data={[...isolations]}
          emptyMessage="Nothing is taken out by hand."
          columns={[
            { label: 'Name', datum: 'name' },
            { label: 'Holds', datum: 'holds' },
            { label: 'Reason', datum: 'reason' },
            { label: 'Until', datum: 'until' },
          ]}
        />
      </SectionBox>
    </>
  );
}

/** Belay's part of a node's page. */
export function NodeSection({ status, name, site }: { status: Status; name: string; site: string }) {
  const { node, chips, jobs } = aboutNode(status, name);
  return (
    <SectionBox title="Belay">
      <NameValueTable
        rows={[
          { name: 'State', value: node ? [node.state, node.level, node.codes.join(', ')].filter(Boolean).join(' ') : 'healthy' },
          { name: 'Why', value: node?.why ?? '', hide: !node?.why },
          ...chips.map(chip => ({
            name: chip.chip,
            value: <>{[chip.state, chip.level, chip.codes.join(', ')].filter(Boolean).join(' ')}{chip.history.map(one => <div key={one.time}>{one.time} {one.what}</div>)}</>,
          })),
          { name: 'Jobs', value: jobs.map(job => `${job.namespace}/${job.name}`).join(', '), hide: !jobs.length },
          { name: 'Take it out', value: <code>{`belay isolate ${name} --reason '…'`}</code> },
          { name: 'Console', value: <ConsoleLink site={site} view="map" select={`node/${name}`} />, hide: !consoleLink(site, 'map') },
        ]}
      />
    </SectionBox>
  );
}

/** Belay's part of a pod's page; nothing where Belay knows no job of it. */
export function PodSection({ status, namespace, name, owners, site }: { status: Status; namespace: string; name: string; owners: readonly string[]; site: string }) {
  const job = jobOfPod(status, namespace, name, owners);
  if (!job) return null;
  const select = `job/${job.namespace}/${job.kind}/${job.name}`;
  return (
    <SectionBox title="Belay">
      <NameValueTable
        rows={[
          { name: 'Job', value: `${job.kind} ${job.namespace}/${job.name}` },
          { name: 'Phase', value: job.phase },
          { name: 'Chips', value: job.pods[name]?.chips.join(', ') ?? '', hide: !job.pods[name] },
          { name: 'Why it waits', value: `${job.reason}: ${job.message}`, hide: !job.reason },
          { name: 'Way out', value: job.wayOut, hide: !job.wayOut },
          { name: 'What happened', value: <>{job.history.map(one => <div key={one.time}>{one.time} {one.what}</div>)}</>, hide: !job.history.length },
          { name: 'Console', value: <ConsoleLink site={site} view="queue" select={select} />, hide: !consoleLink(site, 'queue') },
        ]}
      />
    </SectionBox>
  );
}

function ConsoleLink({ site, view, select = '' }: { site: string; view: string; select?: string }) {
  const address = consoleLink(site, view, select);
  return <a href={address} target="_blank" rel="noreferrer">{address}</a>;
}
