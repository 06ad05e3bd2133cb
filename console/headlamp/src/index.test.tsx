// What the plugin registers, drawn over the recorded status; Headlamp's own components stand aside as plain elements.
import { render, screen, within } from '@testing-library/react';
import { MemoryRouter } from 'react-router-dom';
import { expect, it, vi } from 'vitest';
import './index';
import recorded from './recorded.json';

const { registered, answers } = vi.hoisted(() => ({
  registered: {} as Record<string, any>,
  answers: { maps: null as any, error: null as any, asked: null as any },
}));

vi.mock('@kinvolk/headlamp-plugin/lib', () => ({
  ConfigStore: class {
    useConfig() {
      return () => ({ console: 'https://belay.example' });
    }
  },
  K8s: { ResourceClasses: { ConfigMap: { useList: (asked: any) => { answers.asked = asked; return [answers.maps, answers.error]; } } } },
  registerSidebarEntry: (entry: any) => { registered['sidebar'] = entry; },
  registerRoute: (route: any) => { registered['route'] = route; },
  registerDetailsViewSection: (section: any) => { registered['section'] = section; },
  registerPluginSettings: (name: string) => { registered['settings'] = name; },
}));
vi.mock('@kinvolk/headlamp-plugin/lib/lib/k8s/crd', () => ({
  makeCustomResourceClass: () => ({
    useList: () => [[{ jsonData: { metadata: { name: 'node-9' }, spec: { nodes: ['node-00009'], reason: 'new fan', until: '2100-01-01T00:00:00Z' } } }], null],
  }),
}));
vi.mock('@kinvolk/headlamp-plugin/lib/CommonComponents', () => ({
  Link: ({ children }: any) => <a>{children}</a>,
  Loader: ({ title }: any) => <p>{title}</p>,
  SectionBox: ({ title, children }: any) => <section aria-label={title}>{children}</section>,
  StatusLabel: ({ status, children }: any) => <b className={status}>{children}</b>,
  NameValueTable: ({ rows }: any) => <dl>{rows.filter((row: any) => !row.hide).map((row: any) => <div key={row.name}><dt>{row.name}</dt><dd>{row.value}</dd></div>)}</dl>,
  SimpleTable: ({ data, columns, emptyMessage }: any) => data.length
    ? <table><tbody>{data.map((row: any, at: number) => <tr key={at}>{columns.map((one: any) => <td key={one.label}>{one.getter ? one.getter(row) : row[one.datum]}</td>)}</tr>)}</tbody></table>
    : <p>{emptyMessage}</p>,
}));

function draw(element: any) {
  return render(<MemoryRouter>{element}</MemoryRouter>);
}

function section(kind: string, name: string, namespace?: string) {
  const Section = registered['section'];
  return draw(<Section resource={{ kind, metadata: { name, namespace } }} />);
}

it('has an entry in the sidebar that leads to the overview', () => {
  expect(registered['sidebar'].url).toBe(registered['route'].path);
  answers.maps = (recorded as any[]).map(one => ({ jsonData: one }));
  draw(registered['route'].component());
  expect(answers.asked).toEqual({ namespace: 'belay-system', labelSelector: 'belay.dev/about in (sync,pool,job)' });
  within(screen.getByLabelText('Belay')).getByText('9 of 10 healthy');
  within(screen.getByLabelText('Waiting jobs')).getByText('InvalidRequest');
  within(screen.getByLabelText('Nodes that are not healthy')).getByText('manually-isolated');
  within(screen.getByLabelText('Chips that are not healthy')).getByText('80C98001');
  within(screen.getByLabelText('Isolations')).getByText('new fan');
  expect(screen.getByText('https://belay.example/console/#/overview').getAttribute('rel')).toBe('noreferrer');
});

it('says on the page of a node what Belay knows of it', () => {
  section('Node', 'node-00007');
  screen.getByText(/isolated RestartNPU 80C98001/);
  screen.getByText('train/job-00003');
  screen.getByText('https://belay.example/console/#/map?select=node/node-00007');
});

it('says on the page of a pod why its job was moved, and nothing on that of another', () => {
  section('Pod', 'job-00003-worker-0', 'train');
  screen.getByText(/rescheduled: CardUnhealthy/);
  expect(section('Pod', 'coredns-0', 'kube-system').container.textContent).toBe('');
  expect(section('Service', 'x', 'default').container.textContent).toBe('');
});

it('says that the status cannot be read', () => {
  answers.maps = null;
  answers.error = new Error('Forbidden');
  draw(registered['route'].component());
  screen.getByText('ConfigMaps in belay-system cannot be read: Forbidden');
});
