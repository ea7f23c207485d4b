//! Creates the first users, at each start: those of the two key pairs in the state directory.

use cantle_store::{GrantRow, Store, StoreError, UserRow};

use super::people::{People, key_row, subject_of};
use super::role::Role;
use crate::app::{USER, VIEWER};
use crate::identity::{Identity, Pair};

/// Makes the administrator and the viewer if they are missing, and their pairs their keys. A key that was revoked stays
/// revoked; a pair that is new lets its user in again. So the owner of the state directory is never locked out.
pub(crate) async fn bootstrap(store: &Store, identity: &Identity, now_us: i64) -> Result<People, StoreError> {
    let is_first = store.people().await?.users.is_empty();
    for (id, name, role, pair) in
        [(USER, "admin", Role::Admin, &identity.admin), (VIEWER, "viewer", Role::Viewer, &identity.viewer)]
    {
        let grant =
            GrantRow { subject: subject_of(id), project: String::new(), role: role.name().to_owned() };
        let user =
            UserRow { id: id.to_owned(), name: name.to_owned(), created_us: now_us, ..UserRow::default() };
        store.add_user(&user, std::slice::from_ref(&grant)).await?;
        let Pair { file, is_new } = pair;
        if *is_new {
            store.restore_user(id, &[grant]).await?;
        }
        let key = key_row(id, &file.access_key, &file.secret_key, "made at the first start", now_us);
        store.add_key(&key, None).await?;
    }
    if is_first {
        tracing::info!(
            "the key pair of `cantle credentials` is the administrator's; give each person a pair of their own: \
             cantle users add NAME --role member --project P"
        );
    }
    People::open(store).await
}
