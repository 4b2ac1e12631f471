//! Decides which tables of XDB a subscription of this database leaves out, for instance one to a publication FOR ALL
//! TABLES.

use crate::pg::catch::Result;
use crate::pg::identity;
use crate::pg::spi;
use crate::store::{subscription, versions};

/// Called when a subscription was created or altered, before any rows are copied.
///
/// Some tables have rows that are this database's own. Copying another database's rows into them would fail again and
/// again. A database that runs processes must not get processes of another database, because it would run them too.
pub fn after_statement() -> Result<()> {
    if versions::mismatch().is_some() {
        return Ok(());
    }
    let left_out = identity::as_engine(|| spi::connect(subscription::leave_out))?;
    if left_out {
        pgrx::notice!(
            "xdb: the tables of xdb were removed from the subscription, because this database runs processes of its own"
        );
    }
    Ok(())
}
