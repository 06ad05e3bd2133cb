// On what the engine itself wrote (recorded.json, kept current by tests/test_headlamp.py).
import recorded from './recorded.json';
import { aboutNode, consoleLink, jobOfPod, readStatus, type StatusMap } from './status';

const MAPS = recorded as unknown as StatusMap[];

describe('the status', () => {
  const status = readStatus(MAPS);

  it('says what is in force, what waits and why', () => {
    expect(status.applied).toBe('a'.repeat(40));
    expect(status.ready).toMatchObject({ status: 'True', reason: 'Everything' });
    expect(status.counts).toEqual({ healthy: 9, 'manually-isolated': 1 });
    expect(status.waiting.map(job => [job.name, job.reason, job.chips])).toEqual([['waiting-00000', 'InvalidRequest', 16]]);
    expect(status.waiting[0].wayOut).toBe('ask for 8 chips a pod in 2 pods instead of 1');
    expect(status.findings).toEqual(["desired/x.yaml:3:5 unknown field 'replica'"]);
  });

  it('says what holds a node, and what is wrong with a chip', () => {
    expect(aboutNode(status, 'node-00009').node?.why).toContain('new fan, ticket 4711');
    const { node, chips, jobs } = aboutNode(status, 'node-00007');
    expect(node).toBeNull();
    expect(chips.map(chip => [chip.chip, chip.state, chip.codes])).toEqual([['Ascend910-7', 'isolated', ['80C98001']]]);
    expect(chips[0].history[0].what).toContain('isolated: RestartNPU');
    expect(jobs.map(job => job.name)).toEqual(['job-00003']);
  });

  it('finds the job of a pod by placement or owner', () => {
    expect(jobOfPod(status, 'train', 'job-00003-worker-0', [])?.history[0].what).toContain('rescheduled: CardUnhealthy');
    expect(jobOfPod(status, 'train', 'waiting-00000-master-0', ['waiting-00000'])?.reason).toBe('InvalidRequest');
    expect(jobOfPod(status, 'default', 'job-00003-worker-0', ['waiting-00000'])).toBeNull();
  });
});

it('takes what a person broke for empty', () => {
  const broken = ['belay-sync', 'belay-pool-a', 'belay-job-b'].map(name => ({ metadata: { name }, data: { 'nodes.json': '[1, null', 'chips.json': '[null]', 'status.json': '[]', nodes: '3', 'conditions.json': '{}' } }));
  const status = readStatus([...broken, { metadata: { name: 'belay-job-c' } }]);
  expect(status).toMatchObject({ applied: '', ready: null, counts: {}, nodes: [], waiting: [] });
});

it('links to the console of an address that is one', () => {
  expect(consoleLink('https://belay.example', 'map', 'node/node-1')).toBe('https://belay.example/console/#/map?select=node/node-1');
  expect(consoleLink('https://a.example/ops/console/', 'overview')).toBe('https://a.example/ops/console/#/overview');
  expect(consoleLink('javascript:alert(1)', 'overview')).toBe('');
  expect(consoleLink('', 'overview')).toBe('');
});
