import { tasks } from "../live";
import { link } from "../route";

const TASK_ID = /\b([0-9a-f]{32})\b/;

/** A line of the server's, in which ids of tasks are their names and lead to them. */
export function Says({ text }: { text: string }) {
  return (
    <>
      {text.split(TASK_ID).map((part, index) =>
        index % 2 === 1 ? (
          <a key={index} href={link(`tasks/${part}`)}>
            {tasks.value.get(part)?.name ?? part}
          </a>
        ) : (
          part
        ),
      )}
    </>
  );
}
