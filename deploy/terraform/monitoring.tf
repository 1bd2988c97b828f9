# What a person should know of. Each says what to do: docs/deploy.md#when-something-is-wrong.
locals {
  alerts = {
    compaction_fails = {
      title = "Compaction fails"
      query = "sum(increase(servo_compaction_failures_total[10m])) > 5"
      todo  = "The compactor's log says why. Nothing is lost: what is in the ledger is folded when it can be."
    }
    sweeps_fail = {
      title = "Sweeps fail"
      query = "sum(increase(servo_sweeps_total{result=\"error\"}[15m])) > 5"
      todo  = "The sweeper's log names the domains."
    }
    sweeps_late = {
      title = "Domains are swept late"
      query = "sum(increase(servo_late_sweeps_total[30m])) > 5"
      todo  = "Does the schedule call the sweeper every minute, and does it get through? Its log names what fails."
    }
    full_sweep_fails = {
      title = "No full sweep was complete for a day"
      query = "sum(increase(servo_sweeps_total{kind=\"full\", result=\"ok\"}[25h])) == 0"
      todo  = "Run it by hand: gcloud scheduler jobs run ${var.prefix}-full-sweep. The sweeper's log names the domains that fail."
    }
    notifications_lost = {
      title = "Entries reach the compactor only by sweeping"
      query = "sum(increase(servo_swept_groups_total[30m])) > 100"
      todo  = "Do the subscriptions push, and are they answered 2xx? Runs go on, up to ten minutes late."
    }
    callers_refused = {
      title = "Callers are refused"
      query = "sum by (reason) (increase(servo_refused_callers_total[10m])) > 20"
      todo  = "Somebody who is not in --callers calls, or an account was changed. The service's log names it."
    }
    queue_fails = {
      title = "Tasks cannot be queued"
      query = "sum(increase(servo_queue_tasks_total{result=\"error\"}[10m])) > 20"
      todo  = "Is there a queue for each worker_queue, and may the dispatcher use it?"
    }
    services_fail = {
      title = "Requests fail"
      query = "sum by (route) (increase(servo_http_requests_total{status=~\"5..\"}[10m])) > 50"
      todo  = "The log of the service with that route."
    }
    conflicts = {
      title = "Compactors stand in each other's way"
      query = "sum(rate(servo_publish_conflicts_total[10m])) > 0.5 * sum(rate(servo_publishes_total[10m])) and sum(rate(servo_publishes_total[10m])) > 1"
      todo  = "Harmless, and a waste. Fewer instances of the compactor."
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
    "Found by sweeping only"       = "sum(rate(servo_swept_groups_total[$${__interval}]))"
    "Domains swept, by kind"       = "sum by (kind) (rate(servo_swept_domains_total[$${__interval}]))"
    "Domains that are open"        = "sum(servo_domains_open)"
  }
}

resource "google_monitoring_alert_policy" "this" {
  for_each = var.metrics_sidecar == "" ? {} : local.alerts

  project               = var.project
  display_name          = "${var.prefix}: ${each.value.title}"
  combiner              = "OR"
  notification_channels = var.notification_channels

  conditions {
    display_name = each.value.title

    condition_prometheus_query_language {
      query                     = each.value.query
      duration                  = "0s"
      evaluation_interval       = "60s"
      disable_metric_validation = true # before the first run there are none
    }
  }

  documentation {
    content   = each.value.todo
    mime_type = "text/markdown"
  }
}

# Messages that no service took need no metrics of ours.
resource "google_monitoring_alert_policy" "dead_letters" {
  project               = var.project
  display_name          = "${var.prefix}: Notifications are given up"
  combiner              = "OR"
  notification_channels = var.notification_channels

  conditions {
    display_name = "Dead letters wait"

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
    content   = "A service has refused a notification a hundred times. `gcloud pubsub subscriptions pull ${google_pubsub_subscription.dead.name}` shows which; the service's log says why."
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
