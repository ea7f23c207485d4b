import { render } from "preact";
import { useEffect } from "preact/hooks";
import { resume, session } from "./api";
import { connect, connection } from "./live";
import { Audit } from "./pages/Audit";
import { Compare } from "./pages/Compare";
import { Events } from "./pages/Events";
import { Gpus } from "./pages/Gpus";
import { New } from "./pages/New";
import { Nodes } from "./pages/Nodes";
import { Projects } from "./pages/Projects";
import { Queues } from "./pages/Queues";
import { Settings } from "./pages/Settings";
import { TaskPage } from "./pages/Task";
import { Tasks } from "./pages/Tasks";
import { Usage } from "./pages/Usage";
import { Users } from "./pages/Users";
import { Login } from "./parts/Login";
import { Shell } from "./parts/Shell";
import { link, listen, path } from "./route";
import "./style.css";
import { applyTheme } from "./theme";

function Page() {
  const [page = "", id, tab = ""] = path.value.split("/");
  if (page === "tasks" && id) return <TaskPage key={id} id={id} tab={tab} />;
  switch (page) {
    case "":
    case "gpus":
      return <Gpus />;
    case "queues":
      return <Queues />;
    case "tasks":
      return <Tasks />;
    case "new":
      return <New />;
    case "compare":
      return <Compare />;
    case "nodes":
      return <Nodes />;
    case "projects":
      return <Projects />;
    case "usage":
      return <Usage />;
    case "events":
      return <Events />;
    case "users":
      return <Users />;
    case "audit":
      return <Audit />;
    case "settings":
      return <Settings />;
    default:
      return (
        <>
          <h1>There is no page “{page}”</h1>
          <p>
            <a href={link("gpus")}>All GPUs</a>
          </p>
        </>
      );
  }
}

/** Asks again until the server answers: the page may have been opened while it restarts. */
function useSession(): void {
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout>;
    const attempt = () =>
      void resume().catch(() => {
        connection.value = "lost";
        timer = setTimeout(attempt, 1000);
      });
    attempt();
    return () => clearTimeout(timer);
  }, []);
}

function Live() {
  useEffect(connect, []);
  return (
    <Shell>
      <Page />
    </Shell>
  );
}

function App() {
  useSession();
  if (session.value === undefined) return <main aria-busy="true" />;
  return session.value === null ? <Login /> : <Live />;
}

applyTheme();
listen();
render(<App />, document.getElementById("app")!);
