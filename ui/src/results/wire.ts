// What a task reported, as ClearML's clients send it.

export interface Param {
  name: string;
  value: string;
  type?: string;
  description?: string;
}

export interface Artifact {
  key: string;
  type?: string;
  mode?: string;
  uri?: string;
  content_size?: number;
  hash?: string;
  timestamp?: number;
  type_data?: { preview?: string; content_type?: string };
}

interface ModelUse {
  name: string;
  model: string;
}

export interface ReportedTask {
  id: string;
  name: string;
  type: string;
  comment?: string;
  tags?: string[];
  hyperparams?: Record<string, Record<string, Param>>;
  configuration?: Record<string, { name: string; value: string; type?: string }>;
  script?: { repository?: string; branch?: string; version_num?: string; entry_point?: string; working_dir?: string; diff?: string; requirements?: { pip?: string } };
  container?: { image?: string; arguments?: string; setup_shell_script?: string };
  execution?: { artifacts?: Artifact[] };
  models?: { input?: ModelUse[]; output?: ModelUse[] };
}

export interface Model {
  id: string;
  name: string;
  uri?: string;
  framework?: string;
  ready?: boolean;
  comment?: string;
}

/** One line of a graph. */
export interface Line {
  name: string;
  x: number[];
  y: number[];
}

export interface ImageEvent {
  metric: string;
  variant: string;
  iter: number;
  url: string;
}

export interface PlotEvent {
  metric: string;
  variant: string;
  iter: number;
  plot_str: string;
}

export interface SingleValue {
  metric: string;
  variant: string;
  value: number;
}
