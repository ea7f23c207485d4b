use std::time::Duration;

use sqlx::ConnectOptions as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use tokio::task::JoinSet;

use super::*;

/// A writer of a file with a table, and how often it commits.
async fn opened(dir: &tempfile::TempDir) -> (Writer, Arc<AtomicUsize>) {
    let options = SqliteConnectOptions::new().filename(dir.path().join("db")).create_if_missing(true);
    let options = options.journal_mode(SqliteJournalMode::Wal);
    let mut durable = options.clone().connect().await.unwrap();
    let tables = "CREATE TABLE t (n INTEGER PRIMARY KEY); \
         CREATE TABLE child (n INTEGER REFERENCES t DEFERRABLE INITIALLY DEFERRED)";
    durable.execute(tables).await.unwrap();
    let commits = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&commits);
    durable.lock_handle().await.unwrap().set_commit_hook(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        true
    });
    (Writer::new(durable, options.connect().await.unwrap()), commits)
}

async fn count(writer: &Writer) -> i64 {
    let mut connections = writer.turn(false).await;
    sqlx::query_scalar("SELECT COUNT(*) FROM t")
        .fetch_one(connections.get(Outlives::Crash).unwrap())
        .await
        .unwrap()
}

async fn insert(writer: Writer, outlives: Outlives, text: &'static str) -> Result<(), sqlx::Error> {
    let mut writing = match outlives {
        Outlives::Power => writer.begin_shared().await,
        Outlives::Crash => writer.begin(outlives).await,
    };
    writing.later(word(text));
    writing.commit().await
}

const ROWS: [&str; 4] = [
    "INSERT INTO t VALUES (1)",
    "INSERT INTO t VALUES (2)",
    "INSERT INTO t VALUES (3)",
    "INSERT INTO t VALUES (4)",
];

/// Each of these in a transaction of its own, which all wait for one that writes 0. Their results are in any order.
async fn behind_another(
    writer: &Writer,
    texts: &[&'static str],
) -> (Result<(), sqlx::Error>, Vec<Result<(), sqlx::Error>>) {
    let mut first = writer.begin_shared().await;
    first.later(word("INSERT INTO t VALUES (0)"));
    let mut others = JoinSet::new();
    for text in texts {
        others.spawn(insert(writer.clone(), Outlives::Power, text));
    }
    wait_for(writer, texts.len()).await;
    let first = first.commit().await;
    (first, others.join_all().await)
}

async fn wait_for(writer: &Writer, waiting: usize) {
    while writer.waiting.load(Ordering::Relaxed) < waiting {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn transactions_that_wait_for_each_other_are_one_commit() {
    let dir = tempfile::tempdir().unwrap();
    let (writer, commits) = opened(&dir).await;
    let (first, others) = behind_another(&writer, &ROWS).await;
    assert!(first.is_ok() && others.iter().all(Result::is_ok), "{first:?} {others:?}");
    assert_eq!((commits.load(Ordering::Relaxed), count(&writer).await), (1, 5));
    // One alone is on disk when it returns.
    insert(writer.clone(), Outlives::Power, "INSERT INTO t VALUES (5)").await.unwrap();
    insert(writer.clone(), Outlives::Power, "INSERT INTO t VALUES (6)").await.unwrap();
    assert_eq!((commits.load(Ordering::Relaxed), count(&writer).await), (3, 7));
}

#[tokio::test]
async fn one_that_fails_takes_nothing_from_its_group() {
    let dir = tempfile::tempdir().unwrap();
    let (writer, commits) = opened(&dir).await;
    let twice = "INSERT INTO t VALUES (7); INSERT INTO t VALUES (0)";
    let (first, others) = behind_another(&writer, &[ROWS[0], twice, ROWS[1]]).await;
    assert!(first.is_ok(), "{first:?}");
    assert_eq!(others.iter().filter(|other| other.is_err()).count(), 1, "{others:?}");
    // 0, 1 and 2, and not 7.
    assert_eq!((commits.load(Ordering::Relaxed), count(&writer).await), (1, 3));
}

#[tokio::test]
async fn a_transaction_that_is_dropped_takes_nothing_from_its_group() {
    let dir = tempfile::tempdir().unwrap();
    let (writer, _) = opened(&dir).await;
    let first = writer.begin_shared().await;
    let dropped = tokio::spawn({
        let writer = writer.clone();
        async move {
            let mut writing = writer.begin_shared().await;
            writing.later(word(ROWS[1]));
            writing.flush().await.unwrap();
        }
    });
    wait_for(&writer, 1).await;
    let last = tokio::spawn(insert(writer.clone(), Outlives::Power, ROWS[2]));
    wait_for(&writer, 2).await;
    let mut first = first;
    first.later(word(ROWS[0]));
    first.commit().await.unwrap();
    dropped.await.unwrap();
    last.await.unwrap().unwrap();
    assert_eq!(count(&writer).await, 2);
}

#[tokio::test]
async fn a_commit_that_fails_fails_for_all_of_its_group() {
    let dir = tempfile::tempdir().unwrap();
    let (writer, commits) = opened(&dir).await;
    let orphan = "INSERT INTO child VALUES (99)";
    let (first, others) = behind_another(&writer, &[ROWS[0], orphan, ROWS[1]]).await;
    let texts: Vec<String> =
        others.into_iter().chain([first]).map(|each| each.unwrap_err().to_string()).collect();
    assert!(texts.iter().all(|text| text.contains("FOREIGN KEY constraint failed")), "{texts:?}");
    assert_eq!(count(&writer).await, 0);
    insert(writer.clone(), Outlives::Power, ROWS[3]).await.unwrap();
    assert_eq!(count(&writer).await, 1);
    drop(commits);
}

#[tokio::test]
async fn a_group_is_committed_though_its_callers_have_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (writer, commits) = opened(&dir).await;
    let mut first = writer.begin_shared().await;
    first.later(word(ROWS[0]));
    let mut others = JoinSet::new();
    others.spawn(insert(writer.clone(), Outlives::Power, ROWS[1]));
    wait_for(&writer, 1).await;
    let ends = tokio::spawn(first.commit());
    while commits.load(Ordering::Relaxed) == 0 && writer.connections.try_lock().is_err() {
        tokio::task::yield_now().await;
    }
    ends.abort();
    others.abort_all();
    // This insert needs the database exclusively, and does not wait for a caller that is gone.
    insert(writer.clone(), Outlives::Crash, ROWS[2]).await.unwrap();
    assert!(count(&writer).await >= 2);
    insert(writer.clone(), Outlives::Power, ROWS[3]).await.unwrap();
}

#[tokio::test]
async fn groups_lose_nothing_beside_transactions_that_fail_and_bulk() {
    const CALLERS: i64 = 16;
    const EACH: i64 = 40;
    let dir = tempfile::tempdir().unwrap();
    let (writer, commits) = opened(&dir).await;
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let writer = writer.clone();
        callers.spawn(async move {
            for n in 0..EACH {
                let outlives = if n % 7 == 3 { Outlives::Crash } else { Outlives::Power };
                let mut writing = match outlives {
                    // Some share no commit.
                    Outlives::Power if n % 11 != 2 => writer.begin_shared().await,
                    _ => writer.begin(outlives).await,
                };
                let text = format!("INSERT INTO t VALUES ({})", caller * EACH + n + 1);
                writing.later(Statement { text: Cow::Owned(text), values: Vec::new() });
                match n % 5 {
                    // Nothing of it stays.
                    0 => writing.flush().await.unwrap(),
                    1 => {
                        writing.later(word("INSERT INTO missing VALUES (1)"));
                        writing.commit().await.unwrap_err();
                    }
                    _ => writing.commit().await.unwrap(),
                }
            }
        });
    }
    callers.join_all().await;
    assert_eq!(count(&writer).await, CALLERS * EACH * 3 / 5);
    let commits = commits.load(Ordering::Relaxed);
    assert!(commits > 0 && i64::try_from(commits).unwrap() < CALLERS * EACH * 3 / 5, "{commits}");
}

/// Runs the other one, which waits for a transaction that writes a row.
async fn behind_a_row<T: Send + 'static>(
    writer: &Writer,
    other: impl Future<Output = T> + Send + 'static,
) -> T {
    let mut first = writer.begin_shared().await;
    first.later(word(ROWS[0]));
    let other = tokio::spawn(other);
    wait_for(writer, 1).await;
    first.commit().await.unwrap();
    other.await.unwrap()
}

#[tokio::test]
async fn who_is_refused_learns_it_when_the_reason_is_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (writer, commits) = opened(&dir).await;
    let other = writer.clone();
    let refused = async move {
        let mut writing = other.begin_shared().await;
        let seen = writing.with_waiting(word("SELECT COUNT(*) FROM t"));
        let seen = sqlx::query_scalar(sqlx::AssertSqlSafe(seen.text.into_owned()));
        let seen: i64 = seen.fetch_one(writing.connection().unwrap()).await.unwrap();
        let before = commits.load(Ordering::Relaxed);
        writing.give_up().await.unwrap();
        (seen, before, commits.load(Ordering::Relaxed))
    };
    assert_eq!(behind_a_row(&writer, refused).await, (1, 0, 1));
}

#[tokio::test]
async fn one_that_shares_no_commit_reads_nothing_that_is_not_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (writer, commits) = opened(&dir).await;
    let other = writer.clone();
    let alone = async move {
        let _writing = other.begin(Outlives::Power).await;
        commits.load(Ordering::Relaxed)
    };
    assert_eq!(behind_a_row(&writer, alone).await, 1);
}
