// The ended tasks that match a filter, as a sparse list: pages of the API are loaded where the user looks, and ends
// that the event stream tells of are put in front.

import { isLive, matches, type Filter, type Task } from "./tasks";

export const PAGE = 100;
/** Beyond this a browser's scroll bar is too coarse; older tasks are found by searching. */
const MOST_ROWS = 200_000;

export interface Page {
  tasks: Task[];
  total: number;
}

export type Load = (filter: Filter, offset: number, limit: number) => Promise<Page>;

export class EndedList {
  #rows: (Task | undefined)[] = [];
  #loading = new Set<number>();
  /** Counts refreshes: an answer to a question from before the last one is dropped. */
  #generation = 0;

  constructor(
    readonly filter: Filter,
    private readonly load: Load,
    /** How many live tasks match: the API's total counts them, too. */
    private readonly liveMatching: () => number,
    private readonly changed: () => void,
  ) {}

  get length(): number {
    return Math.min(this.#rows.length, MOST_ROWS);
  }

  at(index: number): Task | undefined {
    return this.#rows[index];
  }

  /** Loads what is missing of these rows. */
  ensure(from: number, until: number): void {
    for (let page = Math.floor(from / PAGE); page * PAGE < Math.min(until, this.#rows.length); page++) {
      const end = Math.min((page + 1) * PAGE, this.#rows.length, until);
      for (let row = Math.max(page * PAGE, from); row < end; row++) {
        if (this.#rows[row] === undefined) {
          void this.#fetch(page);
          break;
        }
      }
    }
  }

  /** Loads the first page again, and forgets the others: what they were may have moved. */
  async refresh(): Promise<void> {
    this.#generation += 1;
    this.#loading.clear();
    await this.#fetch(0, true);
  }

  /** Takes over a task that has ended, was resumed, or changed after its end. */
  take(task: Task): void {
    const index = this.#rows.findIndex((row) => row?.sessionID === task.sessionID);
    if (isLive(task) || !matches(this.filter, task)) {
      if (index >= 0) this.#rows.splice(index, 1);
    } else if (index >= 0 && this.#rows[index]?.completedAt === task.completedAt) {
      this.#rows[index] = task;
    } else {
      if (index >= 0) this.#rows.splice(index, 1);
      this.#rows.unshift(task);
    }
  }

  async #fetch(page: number, anew = false): Promise<void> {
    if (this.#loading.has(page)) return;
    const generation = this.#generation;
    this.#loading.add(page);
    try {
      const found = await this.load(this.filter, page * PAGE, PAGE);
      if (generation !== this.#generation) return;
      if (anew) this.#rows = [];
      this.#place(page * PAGE, found);
      this.changed();
    } catch {
      // The stream says that the daemon is away, and refreshes when it is back.
    } finally {
      if (generation === this.#generation) this.#loading.delete(page);
    }
  }

  #place(offset: number, { tasks, total }: Page): void {
    // Sorted by their ends, live tasks come last.
    const ended = tasks.filter((task) => !isLive(task));
    const live = this.filter.status === "" ? this.liveMatching() : isLiveStatus(this.filter.status) ? total : 0;
    this.#rows.length = Math.max(total - live, offset + ended.length);
    if (ended.length < Math.min(PAGE, total - offset)) this.#rows.length = offset + ended.length;
    const ids = new Set(ended.map((task) => task.sessionID));
    // What ended between the question and the answer moved the others on; none is shown twice.
    for (let row = 0; row < this.#rows.length; row++) {
      const known = this.#rows[row];
      if (known !== undefined && ids.has(known.sessionID)) this.#rows[row] = undefined;
    }
    ended.forEach((task, n) => (this.#rows[offset + n] = task));
  }
}

function isLiveStatus(status: string): boolean {
  return status === "running" || status === "resumed";
}
