//! What a subscription of this database takes of the tables of XDB, as one of `FOR ALL TABLES` does.

use crate::pg::catch::Result;
use crate::pg::identity;
use crate::pg::spi;
use crate::store::{subscription, versions};

/// Called when a subscription was made or altered: before anything is copied.
///
/// The rows that say who the engine is are this database's own: there they are, so that copying those of another fails for ever.
/// Where processes run, they must not meet those of another database: they would run here too.
pub fn after_statement() -> Result<()> {
    if versions::mismatch().is_some() {
        return Ok(());
    }
    let left_out = identity::as_engine(|| spi::connect(subscription::leave_out))?;
    if left_out {
        pgrx::notice!(
            "xdb: the tables of XDB are left out of the subscription, because this database runs processes of its own"
        );
    }
    Ok(())
}
