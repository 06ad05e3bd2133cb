// what tests use of Node
declare module "node:test" {
  interface Context {
    mock: { timers: { enable(options: { apis: readonly ("setTimeout" | "Date")[] }): void; tick(ms: number): void } };
  }
  export function test(name: string, run: (context: Context) => void | Promise<void>): void;
}
declare module "node:assert/strict" {
  interface Assert {
    ok(value: unknown, message?: string): asserts value;
    equal(actual: unknown, expected: unknown, message?: string): void;
    deepEqual(actual: unknown, expected: unknown, message?: string): void;
    throws(run: () => unknown, message: RegExp): void;
  }
  const assert: Assert;
  export default assert;
}
