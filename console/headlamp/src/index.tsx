// Registers Belay's page, its parts of the pages of nodes and pods, and the address of the console.
import { ConfigStore, type DetailsViewSectionProps, K8s, registerDetailsViewSection, registerPluginSettings, registerRoute, registerSidebarEntry } from '@kinvolk/headlamp-plugin/lib';
import { Loader, SectionBox } from '@kinvolk/headlamp-plugin/lib/CommonComponents';
import { makeCustomResourceClass } from '@kinvolk/headlamp-plugin/lib/lib/k8s/crd';
import TextField from '@mui/material/TextField';
import { useMemo } from 'react';
import { NAMESPACE, readStatus, SELECTOR, type Status } from './status';
import { isolationRow, NodeSection, Overview, PodSection } from './views';

const NAME = 'belay-headlamp';
const settings = new ConfigStore<{ console?: string }>(NAME);
const useSettings = settings.useConfig();
const Isolation = makeCustomResourceClass({
  apiInfo: [{ group: 'belay.dev', version: 'v1alpha1' }], isNamespaced: false, kind: 'Isolation', singularName: 'isolation', pluralName: 'isolations',
});

/** The status, read and followed with the rights of the person who looks. */
function useStatus(): { status: Status | null; problem: string } {
  const [maps, error] = K8s.ResourceClasses.ConfigMap.useList({ namespace: NAMESPACE, labelSelector: SELECTOR });
  const status = useMemo(() => (maps ? readStatus(maps.map(one => one.jsonData as any)) : null), [maps]);
  return { status, problem: error ? `ConfigMaps in ${NAMESPACE} cannot be read: ${error.message}` : '' };
}

function Page() {
  const { status, problem } = useStatus();
  const [isolations] = Isolation.useList();
  const site = useSettings()?.console ?? '';
  if (problem) return <SectionBox title="Belay">{problem}</SectionBox>;
  if (!status) return <Loader title="Reading Belay's status" />;
  return <Overview status={status} site={site} isolations={(isolations ?? []).map(one => isolationRow(one.jsonData))} />;
}

function Section({ resource }: DetailsViewSectionProps) {
  const kind = resource?.kind;
  return kind === 'Node' || kind === 'Pod' ? <Details resource={resource} /> : null;
}

function Details({ resource }: DetailsViewSectionProps) {
  const { status } = useStatus();
  const site = useSettings()?.console ?? '';
  if (!status) return null;
  const { name, namespace = '', ownerReferences = [] } = resource.metadata;
  if (resource.kind === 'Node') return <NodeSection status={status} name={name} site={site} />;
  return <PodSection status={status} namespace={namespace} name={name} owners={ownerReferences.map((one: { name: string }) => one.name)} site={site} />;
}

function Settings({ data, onDataChange }: { data?: { console?: string }; onDataChange?: (data: { console?: string }) => void }) {
  return (
    <TextField label="Address of Belay's console" placeholder="https://belay.example" fullWidth value={data?.console ?? ''}
      onChange={event => onDataChange?.({ ...data, console: event.target.value })} />
  );
}

registerSidebarEntry({ parent: null, name: 'belay', label: 'Belay', url: '/belay', icon: 'mdi:chip' });
registerRoute({ path: '/belay', sidebar: 'belay', name: 'belay', exact: true, component: () => <Page /> });
registerDetailsViewSection(Section);
registerPluginSettings(NAME, Settings as any, true);
