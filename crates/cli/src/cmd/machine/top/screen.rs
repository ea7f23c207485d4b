//! The live screen: keys in, frames out. Stopping a task asks first.

use std::time::Duration;

use cantle_clearml::tasks::Stop;
use ratatui::DefaultTerminal;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style as Look};
use ratatui::text::Line;
use ratatui::widgets::{List, ListState};
use tokio::time::Instant;

use super::draw;
use super::draw::Style;
use super::rows::{Picture, Sort, TopRow, ViewOptions, rows};
use crate::connect::Connection;
use crate::error::{CliError, ErrorKind, as_kind};

/// Between two polls of the server.
const EVERY: Duration = Duration::from_secs(1);
const KEYS: &str = "q quit   ↑↓ select   / filter   o order   s stop the task";
const KEYS_ASCII: &str = "q quit   j/k select   / filter   o order   s stop the task";

/// The view determines the meaning of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Mode {
    List,
    Filter,
    /// Stop this task? Its id and name.
    Confirm(String, String),
}

/// The action of a key.
#[derive(Debug, PartialEq, Eq)]
enum KeyAction {
    Nothing,
    Quit,
    Stop(String),
}

struct Screen {
    picture: Picture,
    view: ViewOptions,
    style: Style,
    mode: Mode,
    selected: ListState,
    /// The last error or success, until the next.
    note: String,
}

/// Shows the screen until the user leaves. Afterwards the terminal is as before, also after an error.
pub(crate) fn run(
    server: Option<&Connection>,
    picture: Picture,
    view: ViewOptions,
    style: Style,
) -> Result<(), CliError> {
    if !crate::out::on_terminal() {
        return Err(CliError::new(ErrorKind::Usage, "top needs a terminal")
            .with_hint("write cantle top --once for scripts"));
    }
    let mut terminal = ratatui::init();
    let ended = live(server, &mut terminal, Screen::new(picture, view, style));
    ratatui::restore();
    ended
}

fn live(
    server: Option<&Connection>,
    terminal: &mut DefaultTerminal,
    mut screen: Screen,
) -> Result<(), CliError> {
    let failed = as_kind::<std::io::Error>(ErrorKind::Failed);
    let mut next = Instant::now() + EVERY;
    loop {
        terminal.draw(|frame| screen.draw(frame)).map_err(&failed)?;
        if event::poll(next.saturating_duration_since(Instant::now())).map_err(&failed)?
            && let Event::Key(key) = event::read().map_err(&failed)?
        {
            match screen.key(key) {
                KeyAction::Nothing => {}
                KeyAction::Quit => return Ok(()),
                KeyAction::Stop(task) => {
                    screen.note = stop(server, &task);
                }
            }
        }
        if Instant::now() >= next {
            match Picture::fetch(server) {
                Ok(picture) => screen.picture = picture,
                Err(error) => screen.note = error.to_string(),
            }
            next = Instant::now() + EVERY;
        }
    }
}

/// Asks the server to stop a task. Returns a line about the result.
fn stop(server: Option<&Connection>, task: &str) -> String {
    let Some(server) = server else {
        return "there is no server: end its processes, see cantle ps".to_owned();
    };
    let stopped = server.about(task, &Stop { task: task.to_owned(), ..Stop::default() });
    stopped.map_or_else(|error| error.to_string(), |_| format!("asked {task} to stop"))
}

impl Screen {
    fn new(picture: Picture, view: ViewOptions, style: Style) -> Self {
        let selected = ListState::default().with_selected(Some(0));
        Self { picture, view, style, mode: Mode::List, selected, note: String::new() }
    }

    fn key(&mut self, key: KeyEvent) -> KeyAction {
        if key.kind != KeyEventKind::Press {
            return KeyAction::Nothing;
        }
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return KeyAction::Quit;
        }
        match self.mode.clone() {
            Mode::List => self.list_key(key.code),
            Mode::Filter => self.filter_key(key.code),
            Mode::Confirm(task, _) => {
                self.mode = Mode::List;
                if key.code == KeyCode::Char('y') { KeyAction::Stop(task) } else { KeyAction::Nothing }
            }
        }
    }

    fn list_key(&mut self, code: KeyCode) -> KeyAction {
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return KeyAction::Quit,
            KeyCode::Down | KeyCode::Char('j') => self.selected.select_next(),
            KeyCode::Up | KeyCode::Char('k') => self.selected.select_previous(),
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('o') => {
                self.view.sort = match self.view.sort {
                    Sort::Node => Sort::Used,
                    Sort::Used => Sort::Given,
                    Sort::Given => Sort::Node,
                }
            }
            KeyCode::Char('s') => match self.selected_task() {
                Some((id, name)) => self.mode = Mode::Confirm(id, name),
                None => "select a task first".clone_into(&mut self.note),
            },
            _ => {}
        }
        KeyAction::Nothing
    }

    fn filter_key(&mut self, code: KeyCode) -> KeyAction {
        match code {
            KeyCode::Enter => self.mode = Mode::List,
            KeyCode::Esc => {
                self.view.filter.clear();
                self.mode = Mode::List;
            }
            KeyCode::Backspace => {
                self.view.filter.pop();
            }
            KeyCode::Char(c) => self.view.filter.push(c),
            _ => {}
        }
        KeyAction::Nothing
    }

    fn selected_task(&self) -> Option<(String, String)> {
        let rows = rows(&self.picture, &self.view);
        let id = rows.get(self.selected.selected()?)?.task()?.to_owned();
        let name = self.picture.tasks.iter().find(|task| task.id == id).map(|task| task.name.clone());
        Some((id.clone(), name.unwrap_or(id)))
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let areas = Layout::vertical([Constraint::Length(2), Constraint::Fill(1), Constraint::Length(1)]);
        let [head, body, foot] = areas.areas(frame.area());
        frame.render_widget(draw::summary(&self.picture), head);
        let rows: Vec<TopRow> = rows(&self.picture, &self.view);
        let lines = rows.iter().map(|row| draw::row(row, self.style));
        let list = List::new(lines).highlight_style(Look::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(list, body, &mut self.selected);
        frame.render_widget(Line::styled(self.foot(), Look::new().add_modifier(Modifier::DIM)), foot);
    }

    fn foot(&self) -> String {
        match &self.mode {
            Mode::Filter => format!("/{}_   (Enter: keep, Esc: clear)", self.view.filter),
            Mode::Confirm(_, name) => format!("stop {name}? y: yes, any other key: no"),
            Mode::List => {
                let keys = if self.style.ascii { KEYS_ASCII } else { KEYS };
                let filter = if self.view.filter.is_empty() {
                    String::new()
                } else {
                    format!("   /{}", self.view.filter)
                };
                let note = if self.note.is_empty() { String::new() } else { format!("   {}", self.note) };
                format!("{keys}{filter}{note}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::machine::top::draw::tests::picture;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn screen() -> Screen {
        let view = ViewOptions { filter: String::new(), sort: Sort::Node };
        Screen::new(picture(), view, Style { ascii: true, color: false })
    }

    fn press(screen: &mut Screen, code: KeyCode) -> KeyAction {
        screen.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn a_task_is_stopped_only_after_a_yes() {
        let mut screen = screen();
        press(&mut screen, KeyCode::Char('s'));
        assert_eq!(screen.note, "select a task first", "the first row is a GPU");
        press(&mut screen, KeyCode::Down);
        assert_eq!(press(&mut screen, KeyCode::Char('s')), KeyAction::Nothing);
        assert_eq!(screen.foot(), "stop half? y: yes, any other key: no");
        assert_eq!(press(&mut screen, KeyCode::Char('n')), KeyAction::Nothing);
        press(&mut screen, KeyCode::Char('s'));
        assert_eq!(press(&mut screen, KeyCode::Char('y')), KeyAction::Stop("task-half".into()));
    }

    #[test]
    fn letters_go_into_the_filter_while_it_is_open() {
        let mut screen = screen();
        press(&mut screen, KeyCode::Char('/'));
        for letter in "quarter".chars() {
            assert_eq!(press(&mut screen, KeyCode::Char(letter)), KeyAction::Nothing);
        }
        press(&mut screen, KeyCode::Enter);
        assert_eq!(screen.view.filter, "quarter");
        assert_eq!(press(&mut screen, KeyCode::Char('q')), KeyAction::Quit);
    }

    #[test]
    fn whole_screens_are_as_in_the_file_of_snapshots() {
        let mut terminal = Terminal::new(TestBackend::new(110, 12)).unwrap();
        let mut screen = screen();
        let filter = "n/quarter".chars().map(KeyCode::Char).chain([KeyCode::Enter]).collect();
        let steps = [
            ("at the start", vec![]),
            ("asked to stop", vec![KeyCode::Down, KeyCode::Char('s')]),
            ("filtered", filter),
        ];
        let mut shown = String::new();
        for (step, keys) in steps {
            keys.into_iter().for_each(|key| drop(press(&mut screen, key)));
            terminal.draw(|frame| screen.draw(frame)).unwrap();
            shown += &format!("{step}\n{}", terminal.backend());
        }
        assert!(shown == include_str!("screens.txt"), "these are the screens now:\n{shown}");
    }
}
