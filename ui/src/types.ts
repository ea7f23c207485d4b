// The wire, as `crates/service/clearml` defines it.

export interface MigInstance {
  profile: string;
  start: number;
  size: number;
  uuid: string;
}

export interface SliceView {
  task: string;
  lease: string;
  milli: number;
  memory_limit_bytes: number;
  memory_used_bytes: number;
  mig: MigInstance | null;
  /** What keeps the task to it; absent until it has started. */
  enforcement?: "mount_namespace" | "container" | "preload";
  /** Its part of the GPU's compute time; absent where the driver divides. */
  compute?: { mode: "fair" | "strict"; request_milli: number; limit_milli: number | null; share_ppm: number | null; gpu_time_us?: number; gate_wait_us: number };
  /** The biggest of its processes. */
  processes?: { pid: number; memory_bytes: number }[];
}

export interface GpuView {
  index: number;
  uuid: string;
  model: string;
  memory_bytes: number;
  mode: "idle" | "shared" | "whole" | "mig";
  allocated_milli: number;
  slices: SliceView[];
  /** MIG instances of others. */
  foreign?: ForeignView[];
}

export interface ForeignView {
  profile: string;
  start: number;
  size: number;
  milli: number;
}

export interface NodeView {
  node: string;
  worker: string;
  last_seen: string;
  alive: boolean;
  queues: { name: string; spec: string }[];
  gpus: GpuView[];
  /** Tasks whose GPU memory is in the memory of the node; without it none. */
  suspended?: SuspendedView[];
}

export interface SuspendedView {
  task: string;
  parked_bytes: number;
  since: string;
}

export type TaskState =
  | "created"
  | "queued"
  | "in_progress"
  | "stopped"
  | "completed"
  | "failed"
  | "closed"
  | "published"
  | "publishing"
  | "unknown";

export interface TaskView {
  id: string;
  name: string;
  /** Name of the user whose it is. */
  user: string;
  project: string | null;
  queue: string | null;
  state: TaskState;
  node: string | null;
  gpus: string[];
  milli: number;
  memory_limit_bytes: number;
  reason: string | null;
  exit_code: number | null;
  created: string;
  started: string | null;
  ended: string | null;
  /** How long its run may last. */
  time_limit_s?: number;
  /** For how long it may be idle. */
  idle_limit_s?: number;
  /** The CPU and main memory that it counts with, or gets. */
  host?: { cpu_milli: number; memory_bytes: number };
}

export interface QueueView {
  name: string;
  id: string;
  waiting: number;
  running: number;
  tasks: string[];
  nodes: string[];
}

/** What a project may have of one resource; GPUs in thousandths. */
export interface Quota {
  deserved?: number | null;
  limit?: number | null;
  weight: number;
}

export interface ProjectQuota {
  gpu: Quota;
  /** How its tasks make room for others; without it as the project above it says. */
  preempt?: string[] | null;
  cpu?: Quota;
  memory?: Quota;
  priority?: number;
  min_run_ms?: number;
  /** The longest time of one of its tasks, in seconds; absent: as the queue allows. */
  max_time_s?: number | null;
  /** The only pools that its tasks may use; absent: every GPU. */
  pools?: string[];
  by_pool?: Record<string, PoolQuota>;
}

/** In thousandths of a GPU. */
export interface PoolQuota {
  deserved: number;
  limit?: number;
}

export interface ProjectView {
  name: string;
  quota?: ProjectQuota;
  deserved_milli: number;
  fair_share_milli: number;
  allocated_milli: number;
  over_quota_milli: number;
  limit_milli?: number;
  by_pool?: Record<string, PoolQuota & { allocated_milli: number }>;
  running: number;
  waiting: number;
}

/** A named set of GPUs: `cantle.get_pools`. */
export interface PoolView {
  name: string;
  /** Patterns; absent: all. */
  nodes?: string[];
  models?: string[];
  gpus: number;
  allocated_milli: number;
}

export interface EventView {
  id: number;
  time: string;
  kind: string;
  task?: string;
  queue?: string;
  node?: string;
  message: string;
  /** Who made it happen; absent: the server itself. */
  who?: string;
}

/** A login of a person: `cantle.get_sessions`. */
export interface SessionView {
  id: string;
  user: string;
  /** `page` or `command line`. */
  via: string;
  client: string;
  from: string;
  created: string;
  expires: string;
  last_used: string;
  last_used_from: string;
  /** It is the one of this page. */
  is_own: boolean;
}

/** A record of the audit. */
export interface AuditView {
  id: number;
  time: string;
  user: string;
  from: string;
  action: string;
  /** `done`, or why it was refused. */
  outcome: string;
  subject: string;
  before: unknown;
  after: unknown;
}

/** A line of a report: `cantle.get_usage`. */
export interface UsageLine {
  kind: "allocated" | "free" | "faulty" | "away";
  /** In the order in which the report is added up. */
  keys: string[];
  /** The task's, where it is added up by task. */
  name?: string;
  runs: number;
  gpu_seconds: number;
  /** Within the quotas of projects; the rest of what runs had is borrowed. */
  guaranteed_gpu_seconds: number;
  borrowed_gpu_seconds: number;
  /** What others had of the project's quota; only in lines by project. */
  lent_gpu_seconds: number | null;
  memory_gib_seconds: number;
  wait_median_s: number | null;
  wait_p95_s: number | null;
  given_up: number;
  lost_gpu_seconds: number;
  /** The part of their limits that runs had at their peaks. */
  memory_peak: number | null;
  /** Absent without a price for all of its time. */
  cost?: number | null;
}

/** A task that would have fitted into a smaller share: `cantle.get_advice`. */
export interface AdviceView {
  project: string | null;
  name: string;
  milli: number;
  enough_milli: number;
  peak_bytes: number;
  runs: number;
  spare_gpu_seconds: number;
}

/** A run of a task: `cantle.get_runs`. */
export interface RunView {
  run: number;
  queue: string | null;
  node: string | null;
  milli: number;
  started: string | null;
  ended: string | null;
  /** Null while it lasts. */
  outcome: string | null;
  exit_code: number | null;
  why: string | null;
}

export interface Explanation {
  task: string;
  name: string;
  state: TaskState;
  queue: string | null;
  position: number | null;
  reason: string;
  nodes: { node: string; alive: boolean; reason: string | null }[];
}

/** A line of a task's output. */
export interface LogEvent {
  timestamp?: number;
  msg?: string;
}

/** Samples that the server kept: equally long lists, oldest first. */
export interface History {
  times_s: number[];
  series: Record<string, (number | null)[]>;
}

/** Who is logged in. */
export interface RoleView {
  /** Name of a user, `group:NAME` or `everybody`. */
  who: string;
  role: string;
  project?: string;
}

/** Absent: none. */
export interface UserLimits {
  gpu_milli?: number;
  queued?: number;
  priority?: number;
  time_s?: number;
}

export interface UserView {
  name: string;
  id: string;
  node: string | null;
  external: boolean;
  groups: string[];
  roles: RoleView[];
  limits?: UserLimits;
  keys: number;
  last_used: string | null;
  created: string;
}

export interface NewKey {
  user: string;
  access_key: string;
  secret_key: string;
}

export interface Session {
  csrf: string;
  access_key: string | null;
  user: string;
  user_name: string;
  /** For each right the projects at the top of the trees in which it holds; "" means all. */
  rights: Record<string, string[]>;
  open: boolean;
  read_only: boolean;
  url: string;
}
