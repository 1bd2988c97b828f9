# Alerts. Each alert says what to do: docs/deploy.md#when-something-is-wrong.
#
# Instances come and go, and their counters are scraped twice a minute. An increase before
# the first scrape of an instance is invisible. Therefore services start every series at 0,
# and the alerts on counters use conditions that repeat while something is wrong. Events
# that happen once a day, or in a service without scrapes, are counted in logs.
locals {
  alerts = merge(local.alerts_on_logs, var.metrics_sidecar == "" ? {} : local.alerts_on_metrics)

  alerts_on_logs = {
    sweeps_fail = {
      title    = "No complete sweep for 15 minutes"
      query    = "absent(sum(sum_over_time(${local.count.sweeps}, job_id=\"${var.prefix}-sweep\"}[15m])) > 0)"
      duration = "300s"
      todo     = "The sweeper's log names the domains that fail: `gcloud run services logs read ${var.prefix}-sweeper --region ${var.region} --project ${var.project} --limit 50`. If the log is empty: `gcloud scheduler jobs describe ${var.prefix}-sweep --location ${var.region} --project ${var.project}` shows whether the scheduler calls the sweeper, and the responses."
    }
    sweeps_late = {
      title    = "Domains are swept late"
      query    = "sum(sum_over_time(${local.count.late_sweeps}}[30m])) > 5"
      duration = "0s"
      todo     = "Check that the scheduler calls the sweeper every minute, and that the calls succeed: `gcloud run services logs read ${var.prefix}-sweeper --region ${var.region} --project ${var.project} --limit 50` shows what fails."
    }
    # A full sweep succeeds once a day. This alert cannot query an increase, because a series with a single point does
    # not increase, and without any success there is no series. It therefore fires if the series is absent, after an
    # extra hour in which a retried sweep may succeed.
    full_sweep_fails = {
      title    = "No complete full sweep for a day"
      query    = "absent(sum(sum_over_time(${local.count.sweeps}, job_id=\"${var.prefix}-full-sweep\"}[25h])) > 0)"
      duration = "3600s"
      todo     = "Run it by hand: `gcloud scheduler jobs run ${var.prefix}-full-sweep --location ${var.region} --project ${var.project}`. The sweeper's log names the domains that fail: `gcloud run services logs read ${var.prefix}-sweeper --region ${var.region} --project ${var.project} --limit 50`."
    }
    notifications_lost = {
      title    = "Entries reach the compactor only through sweeps"
      query    = "sum(sum_over_time(${local.count.unannounced}}[30m])) > 10"
      duration = "0s"
      todo     = "Check that the subscription pushes and gets 2xx responses: `gcloud pubsub subscriptions describe ${google_pubsub_subscription.objects["ledger"].name} --project ${var.project}`, `gcloud run services logs read ${var.prefix}-compactor --region ${var.region} --project ${var.project} --limit 50`. Runs continue, up to ten minutes late."
    }
  }

  alerts_on_metrics = {
    compaction_fails = {
      title    = "Compaction fails"
      query    = "sum(increase(servo_compaction_failures_total[10m])) > 5"
      duration = "0s"
      todo     = "The compactor's log has the reason: `gcloud run services logs read ${var.prefix}-compactor --region ${var.region} --project ${var.project} --limit 50`. Nothing is lost: the compactor folds the ledger's entries as soon as it can."
    }
    entries_unfolded = {
      title    = "Ledger entries wait to be folded"
      query    = "max(servo_oldest_unfolded_entry_age_seconds) > 300"
      duration = "300s"
      todo     = "The compactor's log says why it cannot fold or publish: `gcloud run services logs read ${var.prefix}-compactor --region ${var.region} --project ${var.project} --limit 50`. Nothing is lost: the entries are in the ledger."
    }
    entries_unreadable = {
      title    = "Ledger entries cannot be read"
      query    = "max(servo_unreadable_entries) > 0"
      duration = "300s"
      todo     = "The compactor's log names the entries: `gcloud logging read 'jsonPayload.entry:* severity>=ERROR' --project ${var.project} --freshness 1h --limit 20`. Timers of their domains wait for them. Restore a deleted entry from the bucket's deleted objects, or record that it is lost: servo-cloud admin skip."
    }
    listings_lag = {
      title    = "The ledgers of busy domains are not listed"
      query    = "max(servo_listing_lag_seconds) > 1200"
      duration = "300s"
      todo     = "Sweeps list the ledger of a busy domain every ten minutes. Check that they run and reach the compactor: `gcloud run services logs read ${var.prefix}-sweeper --region ${var.region} --project ${var.project} --limit 50`. Also check whether entries cannot be read: `gcloud run services logs read ${var.prefix}-compactor --region ${var.region} --project ${var.project} --limit 50`."
    }
    callers_refused = {
      title    = "Callers are refused"
      query    = "sum by (reason) (increase(servo_refused_callers_total[10m])) > 20"
      duration = "0s"
      todo     = "The caller is not listed in --callers, or an account was changed. The service's log names the caller: `gcloud logging read 'jsonPayload.message=\"caller refused\"' --project ${var.project} --freshness 1h --limit 20`."
    }
    callbacks_refused = {
      title    = "Worker reports are refused"
      query    = "sum(increase(servo_refused_callbacks_total[10m])) > 20"
      duration = "0s"
      todo     = "A worker is older than contract 1.1, a key was taken off the keyring too early, or reports are forged. The dispatcher's log names the attempts, once a minute: `gcloud logging read 'jsonPayload.message:\"callback refused\"' --project ${var.project} --freshness 1h --limit 20`."
    }
    queue_fails = {
      title    = "Tasks cannot be queued"
      query    = "sum(increase(servo_queue_tasks_total{result=\"error\"}[10m])) > 20"
      duration = "0s"
      todo     = "Check that each worker_queue has a queue, and that the dispatcher may use it: `gcloud tasks queues list --location ${var.region} --project ${var.project}`, `gcloud run services logs read ${var.prefix}-dispatcher --region ${var.region} --project ${var.project} --limit 50`."
    }
    services_fail = {
      title    = "Requests fail"
      query    = "sum by (route) (increase(servo_http_requests_total{status=~\"5..\"}[10m])) > 50"
      duration = "0s"
      todo     = "The log of the service with that route has the reason: `gcloud logging read 'resource.type=\"cloud_run_revision\" severity>=WARNING' --project ${var.project} --freshness 1h --limit 50`."
    }
    conflicts = {
      title    = "Compactors conflict with each other"
      query    = "sum(rate(servo_publish_conflicts_total[10m])) > 0.5 * sum(rate(servo_publishes_total[10m])) and sum(rate(servo_publishes_total[10m])) > 1"
      duration = "0s"
      todo     = "Conflicts are harmless but waste work. Run fewer instances of the compactor: `gcloud run services update ${var.prefix}-compactor --max-instances 2 --region ${var.region} --project ${var.project}`, until you apply the module again."
    }
  }

  watched = {
    "Revisions published a second" = "sum(rate(servo_publishes_total[$${__interval}]))"
    "Rows published a second"      = "sum(rate(servo_published_rows_total[$${__interval}]))"
    "Requests a second, by status" = "sum by (status) (rate(servo_http_requests_total[$${__interval}]))"
    "Store requests, by operation" = "sum by (op) (rate(servo_store_requests_total[$${__interval}]))"
    "Queue tasks, by result"       = "sum by (result) (rate(servo_queue_tasks_total[$${__interval}]))"
    "Tasks waiting for a turn"     = "sum(servo_dispatches_waiting)"
    "Hand-overs, by result"        = "sum by (result) (rate(servo_handovers_total[$${__interval}]))"
    "Oldest unfolded entry (s)"    = "max(servo_oldest_unfolded_entry_age_seconds)"
    "Lag of listings (s)"          = "max(servo_listing_lag_seconds)"
    "Requests, p95 (s)"            = "histogram_quantile(0.95, sum by (le, route) (rate(servo_http_request_duration_seconds_bucket[$${__interval}])))"
    "Folds, p95 (s)"               = "histogram_quantile(0.95, sum by (le) (rate(servo_fold_duration_seconds_bucket[$${__interval}])))"
    "Publishes, p95 (s)"           = "histogram_quantile(0.95, sum by (le) (rate(servo_publish_duration_seconds_bucket[$${__interval}])))"
    "Store requests, p95 (s)"      = "histogram_quantile(0.95, sum by (le, op) (rate(servo_store_request_duration_seconds_bucket[$${__interval}])))"
    "Queue requests, p95 (s)"      = "histogram_quantile(0.95, sum by (le, kind) (rate(servo_queue_request_duration_seconds_bucket[$${__interval}])))"
    "Waits for a turn, p95 (s)"    = "histogram_quantile(0.95, sum by (le) (rate(servo_dispatch_wait_seconds_bucket[$${__interval}])))"
    "Sweeps, by job"               = "sum by (job_id) (sum_over_time(${local.count.sweeps}}[$${__interval}]))"
    "Sweeps that found something"  = "sum(sum_over_time(${local.count.unannounced}}[$${__interval}]))"
    "Domains that are open"        = "sum(servo_domains_open)"
    "Memory of open domains"       = "sum(servo_domains_bytes)"
  }
}

resource "google_monitoring_alert_policy" "this" {
  for_each = local.alerts

  project               = var.project
  display_name          = "${var.prefix}: ${each.value.title}"
  combiner              = "OR"
  notification_channels = var.notification_channels

  conditions {
    display_name = each.value.title

    condition_prometheus_query_language {
      query                     = each.value.query
      duration                  = each.value.duration
      evaluation_interval       = "60s"
      disable_metric_validation = true # the metric does not exist before the first run
    }
  }

  documentation {
    content   = each.value.todo
    mime_type = "text/markdown"
  }
}

# Google's own metrics count unacknowledged messages.
resource "google_monitoring_alert_policy" "dead_letters" {
  project               = var.project
  display_name          = "${var.prefix}: Notifications cannot be delivered"
  combiner              = "OR"
  notification_channels = var.notification_channels

  conditions {
    display_name = "Dead letters are waiting"

    condition_threshold {
      filter          = "resource.type = \"pubsub_subscription\" AND resource.labels.subscription_id = \"${google_pubsub_subscription.dead.name}\" AND metric.type = \"pubsub.googleapis.com/subscription/num_undelivered_messages\""
      comparison      = "COMPARISON_GT"
      threshold_value = 0
      duration        = "300s"

      aggregations {
        alignment_period   = "60s"
        per_series_aligner = "ALIGN_MAX"
      }
    }
  }

  documentation {
    content   = "A service has refused a notification a hundred times. `gcloud pubsub subscriptions pull ${google_pubsub_subscription.dead.name} --project ${var.project} --limit 5` shows which; the service's log says why: `gcloud run services logs read ${var.prefix}-compactor --region ${var.region} --project ${var.project} --limit 50`, and of ${var.prefix}-dispatcher."
    mime_type = "text/markdown"
  }
}

# Push subscriptions deliver within seconds. If a message stays unacknowledged, its service does not run or
# refuses the message.
resource "google_monitoring_alert_policy" "unacknowledged" {
  for_each = local.notified

  project               = var.project
  display_name          = "${var.prefix}: Notifications of ${each.key}/ wait"
  combiner              = "OR"
  notification_channels = var.notification_channels

  conditions {
    display_name = "The oldest message waits for 5 minutes"

    condition_threshold {
      filter          = "resource.type = \"pubsub_subscription\" AND resource.labels.subscription_id = \"${google_pubsub_subscription.objects[each.key].name}\" AND metric.type = \"pubsub.googleapis.com/subscription/oldest_unacked_message_age\""
      comparison      = "COMPARISON_GT"
      threshold_value = 300
      duration        = "300s"

      aggregations {
        alignment_period   = "60s"
        per_series_aligner = "ALIGN_MAX"
      }
    }
  }

  documentation {
    content   = "${var.prefix}-${each.value} does not accept its notifications. Its log says why: `gcloud run services logs read ${var.prefix}-${each.value} --region ${var.region} --project ${var.project} --limit 50`. `gcloud pubsub subscriptions describe ${google_pubsub_subscription.objects[each.key].name} --project ${var.project}` shows where they are pushed. Runs continue through sweeps, up to eleven minutes late."
    mime_type = "text/markdown"
  }
}

resource "google_monitoring_dashboard" "this" {
  count = var.metrics_sidecar == "" ? 0 : 1

  project = var.project
  dashboard_json = jsonencode({
    displayName = "Servo (${var.prefix})"
    mosaicLayout = {
      columns = 48
      tiles = [
        for i, title in keys(local.watched) : {
          xPos   = (i % 2) * 24
          yPos   = floor(i / 2) * 16
          width  = 24
          height = 16
          widget = {
            title = title
            xyChart = {
              dataSets = [{
                plotType        = "LINE"
                timeSeriesQuery = { prometheusQuery = local.watched[title] }
              }]
            }
          }
        }
      ]
    }
  })
}
