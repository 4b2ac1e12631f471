//! Reads from the catalog everything that the extension owns, to compare two databases.

use std::collections::BTreeSet;

use crate::db::Db;

/// All objects of the extension and all their settings, one line per fact.
pub fn schema(db: &mut Db) -> BTreeSet<String> {
    let facts: Vec<String> = db.all(
        r"SELECT format('member %s', pg_describe_object(classid, objid, objsubid)) FROM pg_depend
          WHERE deptype = 'e' AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'xdb')
          UNION ALL
          SELECT format('relation %s %s %s %s %s %s %s', c.oid::regclass, c.relkind, c.reloptions, c.relrowsecurity,
              c.relforcerowsecurity, c.relreplident, c.relpersistence)
          FROM pg_class c WHERE c.relnamespace = 'xdb'::regnamespace
          UNION ALL
          SELECT format('column %s %s %s %s %s %s %s %s', a.attrelid::regclass,
              row_number() OVER (PARTITION BY a.attrelid ORDER BY a.attnum), a.attname,
              format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attstorage,
              (SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d WHERE (d.adrelid, d.adnum) = (a.attrelid, a.attnum)))
          FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
          WHERE c.relnamespace = 'xdb'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
          UNION ALL
          SELECT format('constraint %s %s %s', conrelid::regclass, conname, pg_get_constraintdef(oid)) FROM pg_constraint
          WHERE connamespace = 'xdb'::regnamespace
          UNION ALL
          SELECT format('index %s', pg_get_indexdef(i.indexrelid)) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
          WHERE c.relnamespace = 'xdb'::regnamespace
          UNION ALL
          SELECT format('view %s %s', c.oid::regclass, pg_get_viewdef(c.oid)) FROM pg_class c
          WHERE c.relnamespace = 'xdb'::regnamespace AND c.relkind = 'v'
          UNION ALL
          SELECT format('sequence %s %s', schemaname || '.' || sequencename, to_jsonb(s) - 'last_value') FROM pg_sequences s
          WHERE schemaname = 'xdb'
          UNION ALL
          SELECT format('function %s', pg_get_functiondef(oid)) FROM pg_proc WHERE pronamespace = 'xdb'::regnamespace
          UNION ALL
          SELECT format('policy %s %s %s %s %s %s %s', polrelid::regclass, polname, polcmd, polpermissive, polroles,
              pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid))
          FROM pg_policy
          UNION ALL
          SELECT format('trigger %s', pg_get_triggerdef(t.oid)) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
          WHERE c.relnamespace = 'xdb'::regnamespace AND NOT t.tgisinternal
          UNION ALL
          SELECT format('privilege %s %s %s %s', o.object, a.grantee::regrole, a.privilege_type, a.is_grantable) FROM (
              SELECT oid::regclass::text, relacl FROM pg_class WHERE relnamespace = 'xdb'::regnamespace
              UNION ALL SELECT oid::regprocedure::text, proacl FROM pg_proc WHERE pronamespace = 'xdb'::regnamespace
              UNION ALL SELECT nspname, nspacl FROM pg_namespace WHERE nspname = 'xdb'
              UNION ALL SELECT a.attrelid::regclass || '.' || a.attname, a.attacl FROM pg_attribute a
                  JOIN pg_class c ON c.oid = a.attrelid WHERE c.relnamespace = 'xdb'::regnamespace
              UNION ALL SELECT 'type ' || oid::regtype, typacl FROM pg_type WHERE typnamespace = 'xdb'::regnamespace
          ) o (object, acl), LATERAL aclexplode(o.acl) a
          UNION ALL
          SELECT format('owner %s', owner = (SELECT nspowner FROM pg_namespace WHERE nspname = 'xdb')) FROM (
              SELECT relowner FROM pg_class WHERE relnamespace = 'xdb'::regnamespace
              UNION SELECT proowner FROM pg_proc WHERE pronamespace = 'xdb'::regnamespace) o (owner)
          UNION ALL
          SELECT format('initial privilege %s %s %s', pg_describe_object(i.classoid, i.objoid, i.objsubid),
              CASE WHEN a.grantee = (SELECT nspowner FROM pg_namespace WHERE nspname = 'xdb') THEN 'owner'
                   ELSE a.grantee::regrole::text END, a.privilege_type)
          FROM pg_init_privs i, LATERAL aclexplode(i.initprivs) a
          WHERE (classoid, objoid) IN (SELECT classid, objid FROM pg_depend
              WHERE deptype = 'e' AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'xdb'))
          UNION ALL
          SELECT format('comment %s %s', pg_describe_object(classoid, objoid, objsubid), description) FROM pg_description
          WHERE (classoid, objoid) IN (SELECT classid, objid FROM pg_depend
              WHERE deptype = 'e' AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'xdb'))
          UNION ALL
          SELECT format('dumped %s %s', c::regclass, e.extcondition[i]) FROM pg_extension e,
              LATERAL unnest(e.extconfig) WITH ORDINALITY u (c, i) WHERE e.extname = 'xdb'",
    );
    facts.into_iter().collect()
}
